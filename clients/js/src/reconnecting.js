/**
 * Reconnecting: a connection that outlasts its transports. Where one is lost, another is dialled. It knows session
 * ids and how long to try, and no stream: its user is told when there is a new transport, and sends what is to be
 * sent then.
 * @module
 * @import { Frame, Ready } from "./protocol.js"
 */

import { Backoff, CAP_MS } from "./backoff.js";
import { ConnectionLost, connectionClosed, reconnectFailed, silenceTimedOut, tooLarge } from "./errors.js";
import { bytesBeyond, writeFrame } from "./frame-writer.js";
import { watchLiveness } from "./liveness.js";
import { retry } from "./retry-loop.js";

const GOING_AWAY = 1001; // RFC 6455, 7.4.1

/** @typedef {"open" | "reconnecting" | "closed"} ConnectionState */
/** @typedef {{send(text: string): void, close(code?: number): void, readonly bufferedAmount?: number}} Transport A
 *   socket, as far as it is used here. */
/** @typedef {{receive(text: string): void, lost(lost: ConnectionLost): void}} TransportEvents What it calls. */
/** @typedef {(onready: (ready: Ready, transport: Transport) => TransportEvents, signal?: AbortSignal) =>
 *   Promise<void>} Dial */
/**
 * @typedef {object} Timeouts
 * @property {number} reconnectMs how long to try for another transport; 0: not at all
 * @property {number} silenceMs how long a transport may be silent before it counts as lost; 0: for ever
 */
/**
 * @typedef {object} ConnectionEvents
 * @property {(text: string) => void} receive
 * @property {() => boolean} awaiting whether anything is to come
 * @property {() => void} disconnected the transport is lost, and another is dialled
 * @property {() => void} reconnected there is another transport
 * @property {(lost: ConnectionLost) => void} lost there will be no other
 */

/** The transport that there is, and the next one where it is lost. */
export class Reconnecting {
  ready = /** @type {Ready} */ (/** @type {unknown} */ (null)); // `open` brings it, before anybody may look
  /** @type {Transport | null} */ transport = null;

  #dial;
  #timeouts;
  #events;
  #backoff;
  #since = 0;
  #confirmed = false;
  /** Whether a stream has moved on over the transport. */ #moved = false;
  /** Sessions that the server may believe to be there still. @type {string[]} */ #replaced = [];
  #closed = new AbortController();
  #unwatch = () => {};

  /** @param {Dial} dial @param {Timeouts} timeouts @param {ConnectionEvents} events */
  constructor(dial, timeouts, events) {
    this.#dial = dial;
    this.#timeouts = timeouts;
    this.#events = events;
    this.#backoff = new Backoff(timeouts.reconnectMs);
  }

  /** @param {AbortSignal} [signal] */
  open(signal) {
    return this.#dial((ready, transport) => this.#use(ready, transport), signal);
  }

  /** What the server would not take, as it would end the connection, is refused here. @param {Frame} frame */
  send(frame) {
    if (!this.transport) return;
    const text = writeFrame(frame);
    const most = this.ready.limits.max_message_bytes;
    const bytes = bytesBeyond(text, most);
    if (bytes) throw tooLarge(frame, bytes, most);
    this.transport.send(text);
  }

  /** What was sent over this transport has been received: it works. @param {boolean} [moved] a stream has moved on */
  confirm(moved = false) {
    this.#replaced = [];
    this.#confirmed = true;
    this.#moved ||= moved;
  }

  /** The server goes away, and nothing holds us there: another is dialled. */
  leave() {
    const { transport } = this;
    this.#redial(connectionClosed(GOING_AWAY, ""));
    transport?.close();
  }

  /** Close, and dial no other. @param {number} [code] */
  close(code) {
    this.transport?.close(code);
    this.#leave();
    this.#closed.abort();
  }

  /** @param {Ready} ready @param {Transport} transport @returns {TransportEvents} */
  #use(ready, transport) {
    const former = this.ready;
    this.ready = ready;
    this.transport = transport;
    this.#since = performance.now();
    this.#confirmed = this.#moved = false;
    const liveness = this.#watch(transport);
    if (former) this.#replace(former.session_id);
    return {
      receive: (text) => {
        if (this.transport !== transport) return;
        liveness.receive();
        this.#events.receive(text);
      },
      lost: (lost) => this.transport === transport && this.#redial(lost),
    };
  }

  /** @param {Transport} transport */
  #watch(transport) {
    const { silenceMs } = this.#timeouts;
    const liveness = watchLiveness(silenceMs, {
      awaiting: () => this.#events.awaiting(),
      unsent: () => transport.bufferedAmount ?? 0,
      ping: () => this.send({ type: "ping" }),
      dead: () => {
        this.#redial(silenceTimedOut(silenceMs));
        transport.close(); // no peer is there to answer the close: nothing waits for that
      },
    });
    this.#unwatch = liveness.stop;
    return liveness;
  }

  #leave() {
    this.transport = null;
    this.#unwatch();
  }

  /** All of them, as nobody knows whether the last transport lived to say so. @param {string} former */
  #replace(former) {
    this.#replaced.push(former);
    for (const session_id of this.#replaced) this.send({ type: "replace", session_id });
    this.#events.reconnected();
  }

  /** @param {ConnectionLost} lost */
  #redial(lost) {
    this.#leave();
    if (!this.#timeouts.reconnectMs || !lost.retryable) return this.#events.lost(lost);
    const lastedMs = performance.now() - this.#since;
    if (lastedMs > CAP_MS) this.confirm();
    if (this.#confirmed) this.#backoff.reset(this.#moved ? Infinity : lastedMs);
    this.#events.disconnected();
    const attempt = (/** @type {AbortSignal} */ signal) => this.open(signal);
    retry(attempt, this.#backoff, this.#closed.signal, lost).catch((why) => {
      this.#events.lost(reconnectFailed(lost, why));
    });
  }
}
