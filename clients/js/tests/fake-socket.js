/**
 * A fake WebSocket, whose other end is the test.
 * @module
 */

/** @type {FakeSocket[]} */
const opened = [];

export class FakeSocket extends EventTarget {
  /** @type {any[]} */ sent = [];
  /** @type {number | undefined | null} */ closedWith = null;
  bufferedAmount = 0;

  /** @param {string} url @param {string[]} [protocols] */
  constructor(url, protocols) {
    super();
    this.url = url;
    this.protocols = protocols;
    opened.push(this);
  }

  /** The socket that was opened last. */
  static get last() {
    return /** @type {FakeSocket} */ (opened.at(-1));
  }

  /** @param {string} text */
  send(text) {
    this.sent.push(JSON.parse(text));
  }

  /** @param {number} [code] */
  close(code) {
    this.closedWith = code;
  }

  // -- the other end's ------------------------------------------------------------------------------------

  /** @param {object | string} event */
  receive(event) {
    const data = typeof event === "string" ? event : JSON.stringify(event);
    this.dispatchEvent(new MessageEvent("message", { data }));
  }

  /** @param {number} code @param {string} [reason] */
  end(code, reason = "") {
    this.dispatchEvent(Object.assign(new Event("close"), { code, reason }));
  }
}

export const READY = {
  type: "ready",
  protocol: 1,
  session_id: "s",
  models: ["m"],
  limits: { max_message_bytes: 1000, streams_per_connection: 10, auto_credit_window: 64 },
};
