/**
 * Serve the page that made this worker: the other side of `connectWorker`.
 * @param {{WebSocket?: SocketClass, scope?: Port}} [options] In Node: `scope` is `parentPort`
 */
export function exposeInWorker({ WebSocket, scope }?: {
    WebSocket?: SocketClass;
    scope?: Port;
}): void;
import type { SocketClass } from "./dial.js";
import type { Port } from "./worker-messages.js";
