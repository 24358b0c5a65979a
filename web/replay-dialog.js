/**
 * The replay dialog: a record is loaded from a file, each of its streams is played again, and what came of it is said.
 * Knows the dialog and the SDK's `replay`; knows no conversation. What runs ends with the dialog.
 *
 * @typedef {import("./connection.js").Client} Client
 * @typedef {import("/sdk/midstream.js").Replay} Replay @typedef {import("/sdk/midstream.js").StreamRecord} StreamRecord
 * @typedef {import("/sdk/replay.js").OutputToken} OutputToken
 */
import { ConnectionLost, parseRecords, replay } from "/sdk/midstream.js";
import { byId, element } from "./dom.js";
import { explain } from "./error-messages.js";
import { sanitize } from "./sanitize.js";

export class ReplayDialog {
  #dialog = byId("replay", HTMLDialogElement);
  #file = byId("record", HTMLInputElement);
  #problem = byId("replay-problem", HTMLElement);
  #list = byId("replayed", HTMLElement);
  #running = new AbortController();
  #client;

  /** @param {() => Client | null} client */
  constructor(client) {
    this.#client = client;
    this.#file.addEventListener("click", () => (this.#file.value = "")); // the same file may be chosen again
    this.#file.addEventListener("change", () => this.#load(this.#file.files?.[0]));
    this.#dialog.addEventListener("close", () => this.#running.abort());
  }

  open() {
    this.#begin();
    this.#file.value = "";
    this.#dialog.showModal();
  }

  /** What ran before is of no interest any more. */
  #begin() {
    this.#running.abort();
    this.#running = new AbortController();
    this.#list.replaceChildren();
    this.#say("");
    return this.#running.signal;
  }

  /** @param {File | undefined} file */
  async #load(file) {
    const signal = this.#begin();
    if (!file) return;
    try {
      const records = parseRecords(await file.text());
      for (const record of records) if (!signal.aborted) await this.#replay(record, signal);
    } catch (error) {
      if (!signal.aborted) this.#say(`${sanitize(file.name)}: ${explain(error)}`);
    }
  }

  /** @param {StreamRecord} record @param {AbortSignal} signal */
  async #replay(record, signal) {
    const client = this.#client();
    if (!client) throw new Error("there is no connection to the server");
    const title = element("bdi", "title", titleOf(record));
    const state = element("span", "state", "playing\u2026");
    const item = element("li");
    item.append(title, state);
    this.#list.append(item);
    const onchunk = (/** @type {{ end: number }} */ { end }) => (state.textContent = `playing\u2026 token ${end}`);
    /** @type {Replay} */ let outcome;
    try {
      outcome = await replay(client, record, { signal, onchunk });
    } catch (error) {
      if (signal.aborted || error instanceof ConnectionLost) throw error;
      return void (state.textContent = `not replayed: ${explain(error)}`);
    }
    item.dataset.equal = String(outcome.equal);
    const counted = outcome.tokens === 1 ? "1 token" : `${outcome.tokens} tokens`;
    state.textContent = outcome.equal ? `equal: ${counted}` : `differs at token ${outcome.difference?.index}`;
    item.append(...detailsOf(outcome).map((line) => element("p", "", line)));
  }

  /** @param {string} problem */
  #say(problem) {
    this.#problem.textContent = problem;
    this.#problem.hidden = !problem;
  }
}

/** Its last words, or what it continues. @param {StreamRecord} record */
function titleOf({ start: { prompt, messages, fork } }) {
  const content = messages?.at(-1)?.content ?? prompt ?? (fork ? `a fork of ${fork.request_id}` : "");
  const parts = /** @type {(string | number | { text: string })[]} */ (typeof content === "string" ? [content] : content);
  const text = typeof parts[0] === "number" ? `${parts.length} tokens` : parts.map(textOf).join("");
  return sanitize(text.trim().replaceAll(/\s+/g, " ")).slice(0, 80) || "\u2013";
}

/** @param {string | number | { text: string }} part */
const textOf = (part) => (typeof part === "object" ? part.text : String(part));

/** @param {Replay} outcome @returns {string[]} */
function detailsOf(outcome) {
  const { difference, recordedFingerprints, replayedFingerprints, sameFingerprint, equal } = outcome;
  const lines = [];
  if (difference) {
    const here = difference.recordedLogprobHere;
    const also = here === null ? "" : `; the recorded one has ${here.toFixed(4)} here`;
    lines.push(`Recorded: ${describe(difference.recorded)}`, `Here: ${describe(difference.replayed)}${also}`);
    const { recordedPromptTokens: before, replayedPromptTokens: now } = outcome;
    if (before !== now) lines.push(`The prompt had ${before} tokens, and has ${now} here.`);
  }
  const names = (/** @type {string[]} */ told) => told.join(" and ") || "none";
  if (!sameFingerprint) {
    lines.push(`The fingerprints differ: recorded ${names(recordedFingerprints)}, here ${names(replayedFingerprints)}.`);
  } else {
    const wrong = equal ? "." : ": equal ones promise equal tokens, so this is a mistake of the server\u2019s.";
    lines.push(`The fingerprints are equal, ${names(replayedFingerprints)}${wrong}`);
  }
  return lines.map(sanitize);
}

/** @param {OutputToken | null} token */
function describe(token) {
  if (!token) return "no more";
  const text = token.text === null ? "" : ` \u201c${token.text}\u201d`;
  return `${token.token}${text}, log probability ${token.logprob === null ? "not recorded" : token.logprob.toFixed(4)}`;
}
