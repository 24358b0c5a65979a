/**
 * Whether the other end is still there: where a cable was pulled, no socket says so. It knows how long a silence
 * may last and when one matters; not what is heard, nor what becomes of a connection that is given up.
 * @module
 */

const LONGEST_MS = 2 ** 31 - 1; // a timer's

/**
 * @typedef {object} Watched
 * @property {() => boolean} wanted whether anything is to be heard of: where not, silence is no sign
 * @property {() => void} ask ask for a sign of life
 * @property {() => void} gone there was none
 */

/**
 * Pure: it counts thirds of the time that a silence may last, one to the question and one to its answer. It has
 * no clock, so that a page that slept, or was busy, does not take that for the server's silence.
 */
export class Pulse {
  #heard = true;
  #asked = false;

  /** Anything at all came. */
  heard() {
    this.#heard = true;
  }

  /** Another third has passed. @param {boolean} wanted @returns {"well" | "ask" | "gone"} */
  third(wanted) {
    const silent = wanted && !this.#heard;
    const verdict = !silent ? "well" : this.#asked ? "gone" : "ask";
    this.#heard = false;
    this.#asked = verdict === "ask";
    return verdict;
  }
}

/** Watch one wire, until it is stopped. @param {number} silenceMs 0: do not @param {Watched} watched */
export function watch(silenceMs, { wanted, ask, gone }) {
  if (!silenceMs) return { heard: () => {}, stop: () => {} };
  const pulse = new Pulse();
  const look = () => {
    const verdict = pulse.third(wanted());
    if (verdict === "ask") ask();
    if (verdict === "gone") gone();
  };
  /** @type {any} */
  const timer = setInterval(look, Math.min(silenceMs / 3, LONGEST_MS));
  timer.unref?.(); // in Node the socket keeps a program running, not who watches it
  return { heard: () => pulse.heard(), stop: () => clearInterval(timer) };
}
