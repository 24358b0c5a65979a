/**
 * The workbench: the tools and guards of an agent, put together. It knows what is offered and forbidden; it knows no
 * answer, and what an answer says of it is told here.
 *
 * @typedef {import("../answer-state.js").Settings} Settings
 */
import { byId } from "../dom.js";
import { calculator } from "./calculator.js";
import { clock } from "./clock.js";
import { GuardChips } from "./guard-chips.js";
import { table } from "./table.js";
import { textSearch } from "./text-search.js";
import { ToolShelf } from "./tool-shelf.js";

export class Bench {
  #place = byId("bench", HTMLElement);
  #shelf = new ToolShelf(byId("shelf", HTMLElement), [calculator(), clock(), table(), textSearch()]);
  #choice = byId("tool-choice", HTMLSelectElement);
  guards = new GuardChips(byId("guards", HTMLElement), byId("new-guard", HTMLFormElement));

  get open() {
    return !this.#place.hidden;
  }

  set open(open) {
    this.#place.hidden = !open;
  }

  /** What an answer starts with: where the bench is shut it has none of it. @param {Omit<Settings, "approvals">} settings @returns {Settings} */
  settings({ params, tools, ...rest }) {
    if (!this.open) return { ...rest, params, tools: [], approvals: [] };
    const { guards } = this.guards;
    const offered = [...this.#shelf.tools, ...tools];
    return {
      ...rest,
      params: guards.length ? { ...params, guards } : params,
      tools: offered,
      toolChoice: offered.length ? this.#choice.value : undefined,
      approvals: this.#shelf.approvals,
    };
  }
}
