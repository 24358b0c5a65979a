/**
 * Sample events, as a server would send them, for tests without a server.
 * @module
 * @import { Final, FinishReason, Params, Rewound, Snapshot, Started, Token } from "../src/protocol.js"
 */

const of = { request_id: "r", seq: 0 };

/** @param {Params} [params] @returns {Started} */
export const started = (params = {}) => ({ ...of, type: "started", model: "m", prompt_tokens: 5, params });

/** @param {number} index @param {string} delta @param {{count?: number, tokens?: number[]}} [more] */
export const token = (index, delta, more = {}) =>
  /** @type {Token} */ ({ ...of, type: "token", index, count: 1, delta, ...more });

/** @param {number} index @param {number} length @returns {Rewound} */
export const rewound = (index, length) => ({ ...of, type: "rewound", index, text_length: length });

/** @param {number} seq @param {Partial<Snapshot> & {index: number, text: string}} what @returns {Snapshot} */
export const snapshot = (seq, what) =>
  ({ ...of, seq, type: "snapshot", model: "m", prompt_tokens: 5, params: {}, ...what });

/** @param {FinishReason} reason @param {string} [why] @returns {Final} */
export const final = (reason, why) => ({
  ...of,
  type: "final",
  index: 0,
  finish_reason: reason,
  stop_reason: why,
  usage: {
    prompt_tokens: 5,
    completion_tokens: 0,
    total_tokens: 5,
    cached_tokens: 0,
    injected_tokens: 0,
    discarded_tokens: 0,
    forced_tokens: 0, inherited_tokens: 0, reasoning_tokens: 0,
  },
  timing: { queue_ms: 0, ttft_ms: null, total_ms: 1, paused_ms: 0, tokens_per_s: null },
});
