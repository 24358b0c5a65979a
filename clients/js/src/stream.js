/**
 * The stream that a user holds: iterate it, steer it, drop it.
 *
 * Knows when a stream is no longer wanted. What its events mean is the core's, how frames travel the session's.
 * @module
 * @import { Channel } from "./stream-channel.js"
 * @import { Call, Final, Injection, Kv, Params, Steering } from "./protocol.js"
 * @import { Chunk } from "./stream-core.js"
 */

import { abortable } from "./abortable.js";
import { StreamFailed, streamDetached } from "./errors.js";
import { adjustment } from "./options.js";
import { answerMessage, resultText } from "./tools.js";

/** Where the object that a user held is gone, and nobody listens either, nobody wants the stream. */
const dropped = new FinalizationRegistry((/** @type {Channel} */ channel) => {
  if (!channel.onevent) channel.abandon();
});

/**
 * A running stream of output, made by `client.start`.
 *
 * It is lazy: the server decodes as chunks are asked for, up to the window ahead. Leaving a `for await` over
 * it before its end, by `break`, `return` or an exception, cancels it; so do its `signal`, cancelling its
 * ReadableStream, and, some time later, dropping it. To read a part and go on later, use `next`, which says
 * nothing about what is wanted after it.
 *
 * Each method that steers waits for the server's acknowledgement and resolves to the exact index of the
 * output token from which on it holds. It throws a MidstreamError with code "request_finished" if the stream
 * ends first, and ConnectionLost if the connection does, or if it was lost so that nobody knows whether the
 * frame took effect. A connection that is made anew is otherwise not noticed here: the stream goes on, and
 * answers come. To steer from what was read rather than from what was decoded ahead, pass `at: chunk.end`.
 */
export class Stream {
  #channel;

  /** @param {Channel} channel */
  constructor(channel) {
    this.#channel = channel;
    dropped.register(this, channel);
  }

  // -- what is known of it --------------------------------------------------------------------------------

  /** Its name on the wire. */
  get requestId() {
    return this.#channel.requestId;
  }

  /** The model that answers. */
  get model() {
    return this.#channel.core.model;
  }

  /** The length of the prompt. */
  get promptTokens() {
    return this.#channel.core.promptTokens;
  }

  /** The sampling parameters in force, as the server resolved them. */
  get params() {
    return this.#channel.core.params;
  }

  /** All text received that still stands. It may be ahead of the chunks taken; `rewind` shortens it. */
  get text() {
    return this.#channel.core.text;
  }

  /** What the model has said to itself, of what still stands: it is in no chunk. */
  get reasoning() {
    return this.#channel.core.spans.reasoning;
  }

  /** The calls of tools that still stand; the last may be incomplete: a whole one has an `end`. */
  get calls() {
    return this.#channel.core.spans.calls;
  }

  /** Where what it was told stands: results of calls, and turns of others. */
  get told() {
    return this.#channel.core.told;
  }

  /** What has come and still stands, as a turn of the conversation: the text, and the calls that are whole. */
  get message() {
    return answerMessage(this.text, this.calls);
  }

  /** The ids of all tokens received that still stand, if it was started with `return_tokens: true`. */
  get tokens() {
    return [...this.#channel.core.tokens];
  }

  /** How many output tokens were received and still stand; `consumed` of them were taken. */
  get index() {
    return this.#channel.core.index;
  }

  /** The index after the last token taken: where the next chunk begins. */
  get consumed() {
    return this.#channel.core.consumed;
  }

  /** The number of the last event that came: with `text`, `index` and `tokens` what `client.attach` goes on from. */
  get seq() {
    return this.#channel.core.seq;
  }

  /**
   * Each time that nobody knew it any more, as when its server and engine had died, and it was started again from what
   * had come: at which `index` it went on, and whether it is `exact`, what it would have been. `onevent` hears of each, too.
   */
  get restarts() {
    return this.#channel.core.restarts.map(({ index, exact }) => ({ index, exact }));
  }

  get state() {
    return this.#channel.core.state;
  }

  /**
   * Why it is paused: "client" (somebody asked), "tool_call" (it waits for results), "guard" (it has found something),
   * "memory" (the server is short of it), "engine" (it failed, and is started anew), "loading" (its model is) or
   * "detached" (its connection was lost).
   */
  get pauseReason() {
    return this.#channel.core.pauseReason;
  }

  /** How it ended, with usage and timing; null until it has. @returns {Final | null} */
  get final() {
    return this.#channel.core.final;
  }

  /** Whether nothing more will come of it: it has ended, or is lost. */
  get ended() {
    return Boolean(this.final ?? this.#channel.failure);
  }

  /** Called with every event of this stream, as on the wire, after it has been applied. */
  get onevent() {
    return this.#channel.onevent;
  }

  set onevent(call) {
    this.#channel.onevent = call;
  }

  // -- reading --------------------------------------------------------------------------------------------

  /** @returns {AsyncIterableIterator<Chunk>} */
  [Symbol.asyncIterator]() {
    return this.#reading(() => this.next());
  }

  /**
   * The calls of tools, each once, as soon as it is whole. One that was rewound into, or amended, comes again when it
   * is, under the same id. It reads the stream, as iterating over it does: what it says beside them is in `text` and
   * `reasoning`.
   * @returns {AsyncIterableIterator<Call>}
   */
  toolCalls() {
    /** @type {Set<Call>} */
    const given = new Set();
    return this.#reading(async () => {
      for (;;) {
        const call = this.calls.find((call) => call.end !== undefined && !given.has(call));
        if (call) {
          given.add(call);
          return call;
        }
        if (this.tryNext()) continue;
        if (this.final) return null;
        await this.#channel.nextEvent();
      }
    });
  }

  /**
   * @template T
   * @param {() => Promise<T | null>} next
   * @returns {AsyncIterableIterator<T>}
   */
  #reading(next) {
    // No generator: its `return` would wait for a chunk that is under way, and of a paused stream none comes.
    return {
      next: async () => {
        const value = await this.#wanted(next);
        return value === null ? { value: undefined, done: true } : { value, done: false };
      },
      return: async () => {
        this.#channel.abandon();
        return { value: undefined, done: true };
      },
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }

  /**
   * The next chunk, or null at the end. Throws StreamFailed if the stream ended in an error, and
   * ConnectionLost if the connection broke: after the chunks that came before.
   * @param {{timeout?: number}} [options] `timeout`: milliseconds after which a DOMException "TimeoutError"
   *   is thrown; the chunk is not lost
   * @returns {Promise<Chunk | null>}
   */
  async next({ timeout } = {}) {
    const signal = timeout === undefined ? undefined : AbortSignal.timeout(timeout);
    for (;;) {
      const chunk = this.tryNext();
      if (chunk || this.final) return chunk;
      await abortable(this.#channel.nextEvent(), signal).catch((why) => {
        this.#channel.wake(); // else all that has given up waiting is kept until an event comes
        throw why;
      });
    }
  }

  /**
   * The next chunk if it is here already, and a word to the server that it is wanted; null if it is not here,
   * or the stream has ended: see `final`.
   * @returns {Chunk | null}
   */
  tryNext() {
    this.#channel.signal?.throwIfAborted();
    const chunk = this.#channel.pull();
    if (!chunk) this.#checkEnd();
    return chunk;
  }

  /** Wait for whatever comes next, or for the end of events. */
  news() {
    return this.#channel.nextEvent();
  }

  /**
   * The same chunks for those who pipe. A chunk is asked for when one is read, and none ahead.
   * @returns {ReadableStream<Chunk>}
   */
  toReadableStream() {
    const source = {
      pull: async (/** @type {ReadableStreamDefaultController<Chunk>} */ controller) => {
        const chunk = await this.#wanted(() => this.next());
        chunk ? controller.enqueue(chunk) : controller.close();
      },
      cancel: () => this.#channel.abandon(),
    };
    return new ReadableStream(source, { highWaterMark: 0 });
  }

  /**
   * @template T
   * @param {() => Promise<T>} next
   */
  async #wanted(next) {
    try {
      return await next();
    } catch (error) {
      this.#channel.abandon();
      throw error;
    }
  }

  #checkEnd() {
    if (this.#channel.failure) throw this.#channel.failure;
    if (this.final?.finish_reason === "error") throw new StreamFailed(this.final);
    if (this.final?.finish_reason === "cancelled" && this.final.stop_reason === "detached") throw streamDetached(this.requestId);
  }

  // -- steering -------------------------------------------------------------------------------------------

  /**
   * Stop decoding. With `kv: "release"` its memory is given up at once, to be rebuilt on `resume`.
   * @param {{kv?: Kv}} [options]
   */
  pause({ kv } = {}) {
    return this.#steer({ type: "pause", request_id: this.requestId, kv });
  }

  /** Go on after a pause. */
  resume() {
    return this.#steer({ type: "resume", request_id: this.requestId });
  }

  /**
   * Change sampling parameters: the token at the resulting index is the first sampled with them.
   * @param {Params & {at?: number}} change
   */
  async adjust({ at, ...params }) {
    return this.#steer({ type: "adjust", request_id: this.requestId, params: adjustment(params), at });
  }

  /**
   * Put text, messages or tokens into the context, before the output token at the resulting index.
   * @param {Injection} what
   */
  inject({ text, messages, tokens, at, grammar }) {
    return this.#steer({ type: "inject", request_id: this.requestId, text, messages, tokens, at, grammar });
  }

  /**
   * Tell the model what came of a call, for a stream that was started with `on_tool_call` "pause" or "continue".
   * What is no text is told as JSON. Results of one turn go in together: the stream goes on with the last of them.
   * @param {Call | string} call
   * @param {unknown} content
   */
  toolResult(call, content) {
    return this.#steer({ type: "tool_result", request_id: this.requestId, call_id: idOf(call), content: resultText(content) });
  }

  /**
   * Tell the model that a call has ended with an error.
   * @param {Call | string} call
   * @param {string} error
   */
  toolError(call, error) {
    return this.#steer({ type: "tool_result", request_id: this.requestId, call_id: idOf(call), error });
  }

  /**
   * Say yes to a call that waits for it (`approvals` of the start). A no is a `toolError`.
   * @param {Call | string} call
   */
  approve(call) {
    return this.#steer({ type: "approve", request_id: this.requestId, call_id: idOf(call) });
  }

  /**
   * Change a call's arguments: from the first token that changes on they are written anew, and the model closes the
   * call. With `partial` they are the beginning of their JSON, and the model writes on from there. What was approved of
   * it is not any more.
   * @param {Call | string} call
   * @param {string | object} args
   * @param {{partial?: boolean}} [options]
   */
  amend(call, args, { partial } = {}) {
    return this.#steer({ type: "amend", request_id: this.requestId, call_id: idOf(call), arguments: args, partial });
  }

  /**
   * Forget the output from token `to` on, and go on from there. `text` and `tokens` follow.
   * @param {number} to
   */
  rewind(to) {
    return this.#steer({ type: "rewind", request_id: this.requestId, to });
  }

  /** End it now, if it has not ended. Resolves to the length of its output. May be called again. */
  async cancel() {
    return this.final ? this.final.index : this.#steer({ type: "cancel", request_id: this.requestId });
  }

  /** @param {Steering} frame @returns {Promise<number>} */
  async #steer(frame) {
    const answer = await this.#channel.request(frame);
    return /** @type {{index: number}} */ (answer).index;
  }
}

/** @param {Call | string} call */
const idOf = (call) => (typeof call === "string" ? call : call.call_id);
