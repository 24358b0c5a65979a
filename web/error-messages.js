/** Error messages: from an error to what a person can do about it. Knows the protocol's codes; knows no DOM. */
import { sanitize } from "./sanitize.js";

/** @type {Record<string, string>} */
const ADVICE = {
  connection_lost: "The connection broke. Press \u201cGo on\u201d when it is back: what is here is kept.",
  context_too_long: "The conversation no longer fits the model. Begin a new one, or shorten your text.",
  draining: "The server is going away. Wait until the connection is back, then press \u201cGo on\u201d.",
  engine_error: "The engine failed and is started again. Press \u201cGo on\u201d in a moment.",
  invalid_params: "One of the settings is not accepted. Change it and try again.",
  model_loading: "The model is being loaded. Press \u201cGo on\u201d in a moment.",
  overloaded: "The server is full. Press \u201cGo on\u201d in a moment.",
  request_taken: "This answer was taken over elsewhere. Press \u201cGo on\u201d to have it continued here.",
  rate_limited: "Too much at once. Press \u201cGo on\u201d in a moment.",
  request_finished: "The answer had ended before that could take effect. Click a word to go on from there.",
  stream_failed: "The answer was broken off by a fault. Press \u201cGo on\u201d to have it continued.",
  too_large: "This text is longer than the server takes. Shorten it.",
  too_many_streams: "Too many answers are running. Stop one, then press \u201cGo on\u201d.",
  forbidden: "Your key may not do that.",
  unknown_model: "This model is gone. Choose another at the top.",
};

/** Where a frame's answer was lost, and its stream was not. */
const UNCLEAR =
  "The connection broke before that was answered, so it may have taken effect or not. Look at the text; if it has not, do it again.";

/** What became of steering an answer; nothing is to be done where that had ended. @param {any} error @returns {string} */
export function explainSteering(error) {
  if (error?.code === "request_finished") return "";
  return error?.code === "connection_lost" ? UNCLEAR : explain(error);
}

/** @param {any} error @returns {string} */
export function explain(error) {
  const advice = ADVICE[error?.code];
  const said = sanitize(String(error?.message ?? error));
  return advice ? `${advice} (${said})` : said;
}
