/**
 * The shelf of tools: functions of this page that a model may call, each with what the reader sees and edits of it, and
 * whether it is offered, and asks first. Knows DOM and tools; knows no model.
 *
 * @typedef {import("/sdk/midstream.js").FunctionTool} FunctionTool
 * @typedef {{ title: string, element: HTMLElement, tools: (FunctionTool & { asks?: boolean })[] }} PageTool
 */
import { element } from "../dom.js";

export class ToolShelf {
  /** @type {{ tool: FunctionTool, offered: HTMLInputElement, asks: HTMLInputElement }[]} */ #functions = [];

  /** @param {HTMLElement} container @param {PageTool[]} pageTools */
  constructor(container, pageTools) {
    container.append(...pageTools.map((pageTool) => this.#section(pageTool)));
  }

  /** Those that are offered. */
  get tools() {
    return this.#functions.filter(({ offered }) => offered.checked).map(({ tool }) => tool);
  }

  /** The names of those that ask first. */
  get approvals() {
    return this.#functions.filter(({ offered, asks }) => offered.checked && asks.checked).map(({ tool }) => tool.name);
  }

  /** @param {PageTool} pageTool */
  #section({ title, element: body, tools }) {
    const section = element("section", "page-tool");
    const offered = checkbox(true);
    const head = element("label", "switch");
    head.append(offered, element("span", "", title));
    offered.setAttribute("role", "switch");
    section.append(head, body);
    offered.addEventListener("change", () => section.classList.toggle("off", !offered.checked));
    for (const { asks = false, ...tool } of tools) {
      const ask = checkbox(asks);
      const label = element("label", "asks");
      label.append(element("code", "", tool.name), ask, element("small", "", "asks first"));
      this.#functions.push({ tool, offered, asks: ask });
      section.append(label);
    }
    return section;
  }
}

/** @param {boolean} checked */
function checkbox(checked) {
  return Object.assign(element("input"), { type: "checkbox", checked });
}
