/**
 * The calls of an answer: what has become of each, for its transcript, and what a reader says of them. Knows the SDK's
 * run; knows no DOM. A run that is over still says what came of its calls.
 *
 * @typedef {import("/sdk/midstream.js").Run} Run @typedef {import("/sdk/midstream.js").Call} Call
 * @typedef {import("./answer-transcript.js").CallEntry} CallEntry
 */

export class AnswerCalls {
  /** How far tools say that they are. @type {WeakMap<Call, string>} */ #progress = new WeakMap();
  #run;
  #attempt;

  /**
   * @param {() => Run | null} run
   * @param {(asked: Promise<number> | undefined) => Promise<number | null>} attempt the index that something took effect at
   */
  constructor(run, attempt) {
    this.#run = run;
    this.#attempt = attempt;
  }

  /** As they stand, in the stream of this number. @param {number} number @returns {CallEntry[] | null} */
  entries(number) {
    const run = this.#run();
    if (!run) return null;
    const outcomes = new Map(run.outcomes.map((outcome) => [outcome.call, outcome]));
    return run.stream.calls.map((call) => {
      const { content, error, index: told = null } = outcomes.get(call) ?? {};
      return { run: number, index: call.index, call, state: run.state(call), content, error, told, progress: this.#progress.get(call) };
    });
  }

  /** What there is to say of it. @param {any} event @returns {string | undefined} */
  news({ type, call, name, done, total, error, approval }) {
    if (type === "tool_progress") this.#progress.set(call, total ? `${done} of ${total}` : `${done}`);
    if (type === "tool_outcome") return `${call.name} ${error === undefined ? "returned" : "failed"}`;
    if (type === "tool_call_done" && approval) return "A call waits for your yes";
    return type === "tool_call" ? `Calls ${name}` : undefined;
  }

  /** @param {Call} call */
  approve(call) {
    return this.#attempt(this.#run()?.approve(call));
  }

  /** @param {Call} call @param {string} why */
  refuse(call, why) {
    return this.#attempt(this.#run()?.refuse(call, why || undefined));
  }

  /** @param {Call} call @param {string} content */
  give(call, content) {
    return this.#attempt(this.#run()?.give(call, content));
  }

  /** @param {Call} call @param {string} given @param {boolean} partial whether the model writes on from it */
  amend(call, given, partial) {
    return this.#attempt(this.#run()?.amend(call, given, { partial }));
  }
}
