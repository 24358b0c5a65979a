/**
 * Liveness detection: pings a server that is silent, and tells when it is dead. Where a cable was pulled, no socket
 * says so. It knows how long a silence may last and when one matters; not what is received, nor what becomes of a
 * connection that is given up.
 * @module
 */

/**
 * @typedef {object} LivenessCallbacks
 * @property {() => boolean} awaiting whether anything is awaited: where not, silence is no sign
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
export function watchLiveness(silenceMs, { awaiting, ping, dead }) {
  if (!silenceMs) return { receive: () => {}, stop: () => {} };
  const check = new LivenessCheck();
  const tick = () => {
    const verdict = check.tick(awaiting());
    if (verdict === "ping") ping();
    if (verdict === "dead") dead();
  };
  /** @type {any} */
  const timer = setInterval(tick, silenceMs / 3);
  timer.unref?.(); // in Node the socket keeps a program running, not who watches it
  return { receive: () => check.receive(), stop: () => clearInterval(timer) };
}
