/** The page's Web Worker: with it the socket and all parsing are off the page's own thread. */
import { exposeInWorker } from "/sdk/midstream.js";

exposeInWorker();
