/**
 * The card of an answer on the page: its text, its buttons, its numbers, and a form for interjections. Knows DOM and
 * one `Answer`; does not know the conversation that it stands in.
 */
import { AnswerText } from "./answer-text.js";
import { CallCards } from "./call-cards.js";
import { button, element } from "./dom.js";
import { ReasoningFold } from "./reasoning-fold.js";
import { sanitize } from "./sanitize.js";
import { announce } from "./screen-reader.js";

/** @typedef {import("./answer-state.js").Answer} Answer @typedef {import("./answer-state.js").Settings} Settings */
/** @typedef {import("./answer-transcript.js").Position} Position */

const REASONS = /** @type {Record<string, string>} */ ({
  stop: "finished", tool_calls: "called tools", length: "reached its limit", cancelled: "stopped", error: "broken off",
  guard: "stopped by a guard",
});

export class AnswerCard {
  #drawing = false;
  #resumeAfter = false;

  /** Called where another is wanted, which begins as this one stands there. @type {(at: Position) => void} */ onfork = () => {};

  /** @param {Answer} answer @param {() => Settings} settings @param {() => void} onchange */
  constructor(answer, settings, onchange) {
    this.answer = answer;
    this.reasoning = new ReasoningFold();
    this.calls = new CallCards({
      halt: () => answer.pause(),
      resume: () => answer.resume(),
      approve: (call) => answer.calls.approve(call),
      refuse: (call, why) => answer.calls.refuse(call, why),
      give: (call, content) => answer.calls.give(call, content),
      amend: (call, given, partial) => answer.amend(call, given, partial),
      rewind: (entry) => answer.goOnFrom(entry, settings()),
      fork: (entry) => this.onfork(entry),
    });
    this.text = new AnswerText(
      answer.transcript, (entry) => this.calls.element(entry), (word) => answer.goOnFrom(word, settings()), announce,
    );
    this.state = element("span", "state");
    this.numbers = element("p", "numbers");
    this.problem = element("p", "problem");
    this.pause = button("Pause", () => this.toggle(), "pause");
    this.stop = button("Stop", () => answer.stop(), "stop");
    this.interject = button("Interject", () => this.open(), "interject");
    this.goOn = button("Go on", () => answer.write(settings()), "go-on");
    this.fork = button("Fork", () => this.onfork(answer.end), "fork");
    this.fork.title = "Another answer, which begins as this one stands here";
    this.save = button("Save", () => download(answer.record), "save");
    this.save.title = "Save a record of it: what was asked, how it was steered and what came, for a replay";
    this.interjection = this.#interjectionForm();
    this.element = element("article", "answer");
    this.element.setAttribute("aria-label", answer.label);
    this.element.classList.toggle("forked", answer.origin !== null);
    const tools = element("div", "tools");
    tools.append(this.pause, this.interject, this.stop, this.goOn, this.fork, this.save);
    const head = element("header");
    head.append(element("h3", "", answer.label), this.state, tools);
    this.element.append(
      head, this.reasoning.element, this.text.element, this.interjection, this.problem, this.numbers,
    );
    answer.onchange = (news) => {
      if (news) announce(`${answer.label}: ${news}`);
      if (!answer.running) this.#close();
      this.draw();
      onchange();
    };
    this.draw();
  }

  /** At most once a frame, however many tokens it brought. */
  draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      this.#draw();
    });
  }

  toggle() {
    return this.answer.state === "paused" ? this.answer.resume() : this.answer.pause();
  }

  /** Open the form for an interjection; the answer waits meanwhile. */
  open() {
    if (!this.answer.running) return;
    if (this.interjection.hidden) this.#resumeAfter = this.answer.state !== "paused";
    this.answer.pause();
    this.interjection.hidden = false;
    this.interjection.querySelector("input")?.focus();
  }

  #draw() {
    const { answer } = this;
    const { state, running, final } = answer;
    this.text.draw();
    this.reasoning.draw(answer.reasoning, answer.reasons);
    this.calls.draw(answer.transcript.calls, !running ? "ended" : state === "paused" && !answer.awaitsTools ? "halted" : "live");
    this.element.dataset.state = state;
    this.text.element.setAttribute("aria-busy", String(state === "writing"));
    this.state.textContent = this.#state();
    this.pause.textContent = state === "paused" ? "Resume" : "Pause";
    this.stop.hidden = !running;
    this.pause.hidden = this.interject.hidden = !running || answer.awaitsTools;
    this.goOn.hidden = running || ["stop", "tool_calls"].includes(final?.finish_reason);
    this.fork.hidden = !answer.transcript.pieces.length;
    this.save.hidden = running || !answer.record;
    this.problem.textContent = answer.problem;
    this.problem.hidden = !answer.problem;
    this.numbers.textContent = this.#figures().join("  \u00b7  ");
  }

  #state() {
    const { state, running, reasons, final, awaitsTools } = this.answer;
    if (running && state === "paused" && awaitsTools) return "waits for tools";
    if (running) return reasons && state === "writing" ? "reasoning" : state;
    const reason = final?.finish_reason ?? "error";
    return REASONS[reason] ?? sanitize(reason); // of a newer server
  }

  #figures() {
    const { meter, running, final, index } = this.answer;
    const first = final?.timing.ttft_ms ?? meter.firstMs;
    const rate = running ? meter.rate : final?.timing.tokens_per_s;
    const figures = [];
    const count = final?.index ?? index;
    if (final || index) figures.push(count === 1 ? "1 token" : `${count} tokens`);
    if (rate) figures.push(`${rate.toFixed(rate < 10 ? 1 : 0)} a second`);
    if (first !== null && first !== undefined) figures.push(`first after ${Math.round(first)} ms`);
    if (final?.usage.discarded_tokens) figures.push(`${final.usage.discarded_tokens} forgotten`);
    return figures;
  }

  #interjectionForm() {
    const form = element("form", "interjection");
    const text = element("input");
    text.setAttribute("aria-label", "What to put in");
    text.placeholder = "Put in\u2026";
    const as = element("select");
    as.setAttribute("aria-label", "As whose words");
    as.append(new Option("as its own words", "text"), new Option("as a message of yours", "messages"));
    const put = element("button", "", "Put in");
    form.append(text, as, put, button("Leave", () => this.#close(), "leave"));
    form.hidden = true;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const { value } = text;
      text.value = "";
      const asked = value && this.#put(value, as.value);
      this.#close();
      if (!value || (await asked)) return;
      text.value ||= value; // nobody has to type again what was refused
      this.open();
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.#close();
    });
    return form;
  }

  /** Its own words stand apart from what is before them, as words do. @param {string} value @param {string} as */
  #put(value, as) {
    if (as === "messages") return this.answer.inject({ messages: [{ role: "user", content: value }] });
    return this.answer.inject({ text: /^[\s\p{P}]/u.test(value) ? value : ` ${value}` });
  }

  #close() {
    if (this.interjection.hidden) return;
    this.interjection.hidden = true;
    if (this.#resumeAfter) this.answer.resume();
    this.interject.focus({ preventScroll: true });
  }
}

/** @param {string} record */
function download(record) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([record], { type: "application/jsonl" }));
  link.download = "midstream-record.jsonl";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href)); // when the browser has taken it
}
