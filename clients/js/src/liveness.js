/**
 * Liveness detection: pings a server that is silent, and tells when it is dead. Where a cable was pulled, no socket
 * says so. It knows how long a silence may last and when one matters; not what is received, nor what becomes of a
 * connection that is given up.
 * @module
 */

/**
 * @typedef {object} LivenessCallbacks
 * @property {() => boolean} awaiting whether anything is awaited: where not, silence is no sign
 * @property {() => number} unsent how much waits to be sent: where that becomes less, the server takes it
 * @property {() => void} ping ask for a sign of life
 * @property {() => void} dead there was none
 */

/**
 * Pure: it counts thirds of the time that a silence may last, one to the ping and one to its answer. It has
 * no clock, so that a page that slept, or was busy, does not take that for the server's silence.
 */
export class LivenessCheck {
  #received = true;
  #pinged = false;

  /** Anything at all came. */
  receive() {
    this.#received = true;
  }

  /** Another third has passed. @param {boolean} awaiting @returns {"alive" | "ping" | "dead"} */
  tick(awaiting) {
    const silent = awaiting && !this.#received;
    const verdict = !silent ? "alive" : this.#pinged ? "dead" : "ping";
    this.#received = false;
    this.#pinged = verdict === "ping";
    return verdict;
  }
}

/**
 * Watch one connection, until it is stopped.
 * @param {number} silenceMs 0: do not
 * @param {LivenessCallbacks} callbacks
 */
export function watchLiveness(silenceMs, { awaiting, unsent, ping, dead }) {
  if (!silenceMs) return { receive: () => {}, stop: () => {} };
  const check = new LivenessCheck();
  let left = 0;
  const tick = () => {
    const before = left;
    left = unsent();
    if (left < before) check.receive(); // a ping waits behind it, for minutes where a line is slow
    const verdict = check.tick(awaiting());
    if (verdict === "ping") ping();
    if (verdict === "dead") dead();
  };
  /** @type {any} */
  const timer = setInterval(tick, silenceMs / 3);
  timer.unref?.(); // in Node the socket keeps a program running, not who watches it
  return { receive: () => check.receive(), stop: () => clearInterval(timer) };
}
