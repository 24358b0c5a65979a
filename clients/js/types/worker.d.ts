/**
 * Serve the page that made this worker: the other side of `connectWorker`.
 * @param {{WebSocket?: SocketClass, scope?: PortLike}} [options] In Node: `scope` is `parentPort`
 */
export function exposeInWorker({ WebSocket, scope }?: {
    WebSocket?: SocketClass;
    scope?: PortLike;
}): void;
import type { SocketClass } from "./dial.js";
import type { PortLike } from "./worker-messages.js";
