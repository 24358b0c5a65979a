/**
 * Midstream's client: stream from a language model, and steer it while it speaks.
 *
 *     const client = await connect("http://127.0.0.1:8000");
 *     const stream = await client.start({ prompt: "Once upon a time", temperature: 0.7 });
 *     for await (const chunk of stream) process.stdout.write(chunk.text);
 *
 * `connectWorker` is the same with the socket in a Web Worker.
 * @module
 */

export { Client, connect } from "./client.js";
export { ConnectionLost, MidstreamError, ProtocolError, StreamFailed } from "./errors.js";
export { Stream } from "./handle.js";
export { connectWorker } from "./remote.js";
export { clientSecret } from "./secret.js";
export { exposeInWorker } from "./worker.js";

/** @typedef {import("./client.js").Completion} Completion */
/** @typedef {import("./client.js").ConnectOptions} ConnectOptions */
/** @typedef {import("./errors.js").Close} Close */
/** @typedef {import("./secret.js").SecretOptions} SecretOptions */
/** @typedef {import("./socket.js").ApiKey} ApiKey */
/** @typedef {import("./options.js").StartOptions} StartOptions */
/** @typedef {import("./stream.js").Chunk} Chunk */
/** @typedef {import("./wire.js").Final} Final */
/** @typedef {import("./wire.js").Message} Message */
/** @typedef {import("./wire.js").Params} Params */
/** @typedef {import("./wire.js").Ready} Ready */
/** @typedef {import("./wire.js").StreamEvent} StreamEvent */
