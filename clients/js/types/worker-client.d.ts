/**
 * Connect by way of a worker, which has called `exposeInWorker`. The client is the same in all else. Several
 * clients, of the same or of different servers, may share a worker.
 * @param {PortLike} worker a module Worker
 * @param {string | URL | (string | URL)[]} [url] as for `connect`
 * @param {ConnectOptions} [options]
 */
export function connectWorker(worker: PortLike, url?: string | URL | (string | URL)[], options?: ConnectOptions): Promise<Client>;
import type { PortLike } from "./worker-messages.js";
import type { ConnectOptions } from "./client.js";
import { Client } from "./client.js";
