/**
 * The wire that there is: when it is lost, another one is dialled. It knows sessions and how long to try, and no
 * stream: who hears it is told when there is a new one, and says what is to be said then.
 * @module
 * @import { Frame, Ready } from "./protocol.js"
 */

import { Backoff, CAP_MS } from "./backoff.js";
import { ConnectionLost, notRestored, silent } from "./errors.js";
import { watch } from "./liveness.js";
import { redial } from "./retry.js";

/** @typedef {"open" | "reconnecting" | "closed"} State */
/** @typedef {{send(text: string): void, close(code?: number): void}} Wire What text goes over. */
/** @typedef {{receive(text: string): void, lose(lost: ConnectionLost): void}} Ear Who hears of a wire. */
/** @typedef {(greet: (ready: Ready, wire: Wire) => Ear, signal?: AbortSignal) => Promise<void>} Dial */
/**
 * @typedef {object} Patience
 * @property {number} reconnectMs how long to try for another wire; 0: not at all
 * @property {number} silenceMs how long a wire may be silent before it counts as lost; 0: for ever
 */
/**
 * @typedef {object} Hearer
 * @property {(text: string) => void} receive
 * @property {() => boolean} wanted whether anything is to come
 * @property {() => void} broken the wire is gone, and another is sought
 * @property {() => void} restored there is another wire
 * @property {(lost: ConnectionLost) => void} lose there will be no other
 */

export class Wires {
  ready = /** @type {Ready} */ (/** @type {unknown} */ (null)); // `open` brings it, before anybody may look
  /** @type {Wire | null} */ current = null;

  #dial;
  #patience;
  #hearer;
  #backoff;
  #since = 0;
  /** Sessions that the server may believe to be there still. @type {string[]} */ #ghosts = [];
  #gone = new AbortController();
  #unwatch = () => {};

  /** @param {Dial} dial @param {Patience} patience @param {Hearer} hearer */
  constructor(dial, patience, hearer) {
    this.#dial = dial;
    this.#patience = patience;
    this.#hearer = hearer;
    this.#backoff = new Backoff(patience.reconnectMs);
  }

  /** @param {AbortSignal} [signal] */
  open(signal) {
    return this.#dial((ready, wire) => this.#greet(ready, wire), signal);
  }

  /** @param {Frame} frame */
  send(frame) {
    this.current?.send(JSON.stringify(frame));
  }

  /** What was said over this wire has been heard: it works. */
  works() {
    this.#ghosts = [];
    this.#backoff.reset();
  }

  /** Close, and seek no other. @param {number} [code] */
  close(code) {
    this.current?.close(code);
    this.#leave();
    this.#gone.abort();
  }

  /** @param {Ready} ready @param {Wire} wire @returns {Ear} */
  #greet(ready, wire) {
    const former = this.ready;
    this.ready = ready;
    this.current = wire;
    this.#since = performance.now();
    const watching = this.#watch(wire);
    if (former) this.#replace(former.session_id);
    return {
      receive: (text) => {
        if (this.current !== wire) return;
        watching.heard();
        this.#hearer.receive(text);
      },
      lose: (lost) => this.current === wire && this.#drop(lost),
    };
  }

  /** @param {Wire} wire */
  #watch(wire) {
    const { silenceMs } = this.#patience;
    const watching = watch(silenceMs, {
      wanted: () => this.#hearer.wanted(),
      ask: () => this.send({ type: "ping" }),
      gone: () => {
        this.#drop(silent(silenceMs));
        wire.close(); // nobody is there to part from: nothing waits for that
      },
    });
    this.#unwatch = watching.stop;
    return watching;
  }

  #leave() {
    this.current = null;
    this.#unwatch();
  }

  /** All of them, as nobody knows whether the last wire lived to say so. @param {string} former */
  #replace(former) {
    this.#ghosts.push(former);
    for (const session_id of this.#ghosts) this.send({ type: "replace", session_id });
    this.#hearer.restored();
  }

  /** @param {ConnectionLost} lost */
  #drop(lost) {
    this.#leave();
    if (!this.#patience.reconnectMs || !lost.retryable) return this.#hearer.lose(lost);
    if (performance.now() - this.#since > CAP_MS) this.works();
    this.#hearer.broken();
    const attempt = (/** @type {AbortSignal} */ signal) => this.open(signal);
    redial(attempt, this.#backoff, this.#gone.signal, lost).catch((why) => {
      this.#hearer.lose(notRestored(lost, why));
    });
  }
}
