/** The worker thread of tests, by Node's worker_threads, with the sockets of its page's clients in it. */

import { parentPort } from "node:worker_threads";
import { WebSocket } from "ws";

import { exposeInWorker } from "../src/midstream.js";

exposeInWorker({ WebSocket, scope: /** @type {import("node:worker_threads").MessagePort} */ (parentPort) });
