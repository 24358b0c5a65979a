/** The worker of worker mode: the socket and all parsing live here, and the page's own thread is left free. */
import { exposeInWorker } from "/sdk/midstream.js";

exposeInWorker();
