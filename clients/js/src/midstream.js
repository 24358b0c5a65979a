/**
 * The package's entry point, and its public API: stream from a language model, and steer it while it speaks.
 *
 *     const client = await connect("http://127.0.0.1:8000");
 *     const stream = await client.start({ prompt: "Once upon a time", temperature: 0.7 });
 *     for await (const chunk of stream) process.stdout.write(chunk.text);
 *
 * `connectWorker` is the same with the socket in a Web Worker.
 * @module
 */

export { Agent } from "./agent.js";
export { Run } from "./agent-run.js";
export { Client, connect } from "./client.js";
export { ConnectionLost, LimitReached, MidstreamError, ParseError, ProtocolError, StreamFailed } from "./errors.js";
export { Recorder } from "./recorder.js";
export { RecordError, parseRecords } from "./record-format.js";
export { replay } from "./replay.js";
export { Stream } from "./stream.js";
export { BadCall, answerMessage, callArguments, outcomeMessage, runCall, toolMessage } from "./tools.js";
export { connectWorker } from "./worker-client.js";
export { clientSecret } from "./client-secret.js";
export { exposeInWorker } from "./worker.js";

/** @typedef {import("./agent.js").AgentOptions} AgentOptions */
/** @typedef {import("./agent.js").Verdict} Verdict */
/** @typedef {import("./agent-run.js").RunEvent} RunEvent */
/** @typedef {import("./stream-calls.js").CallState} CallState */
/** @typedef {import("./stream-calls.js").Outcome} Outcome */
/** @typedef {import("./tool-runs.js").ToolContext} ToolContext */
/** @typedef {import("./client.js").Completion} Completion */
/** @typedef {import("./client.js").ConnectOptions} ConnectOptions */
/** @typedef {import("./errors.js").Close} Close */
/** @typedef {import("./client-secret.js").SecretOptions} SecretOptions */
/** @typedef {import("./dial.js").ApiKey} ApiKey */
/** @typedef {import("./options.js").StartOptions} StartOptions */
/** @typedef {import("./stream-core.js").Chunk} Chunk */
/** @typedef {import("./protocol.js").Call} Call */
/** @typedef {import("./protocol.js").Final} Final */
/** @typedef {import("./protocol.js").Message} Message */
/** @typedef {import("./protocol.js").Params} Params */
/** @typedef {import("./protocol.js").Ready} Ready */
/** @typedef {import("./protocol.js").StreamEvent} StreamEvent */
/** @typedef {import("./protocol.js").Tool} Tool */
/** @typedef {import("./tools.js").FunctionTool} FunctionTool */
/** @typedef {import("./record-format.js").StreamRecord} StreamRecord */
/** @typedef {import("./replay.js").Replay} Replay */
