/**
 * @typedef {object} Socket What is used of a WebSocket: a browser's, Node's, or that of the package `ws`.
 * @property {(text: string) => void} send
 * @property {(code?: number) => void} close
 * @property {(type: any, listener: (event: any) => void) => void} addEventListener
 */
/** @typedef {new (url: string, protocols?: string[]) => Socket} SocketClass */
/**
 * Connect, and wait for the server's first words.
 * @param {string} url
 * @param {{protocols: string[], WebSocket?: SocketClass, signal?: AbortSignal}} options
 * @returns {Promise<Connection>}
 */
export function openSocket(url: string, { protocols, WebSocket, signal }: {
    protocols: string[];
    WebSocket?: SocketClass;
    signal?: AbortSignal;
}): Promise<Connection>;
/**
 * What is used of a WebSocket: a browser's, Node's, or that of the package `ws`.
 */
export type Socket = {
    send: (text: string) => void;
    close: (code?: number) => void;
    addEventListener: (type: any, listener: (event: any) => void) => void;
};
export type SocketClass = new (url: string, protocols?: string[]) => Socket;
import { Connection } from "./connection.js";
