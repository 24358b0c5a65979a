/**
 * @typedef {object} Socket What is used of a WebSocket: a browser's, Node's, or that of the package `ws`.
 * @property {(text: string) => void} send
 * @property {(code?: number) => void} close
 * @property {(type: any, listener: (event: any) => void) => void} addEventListener
 */
/** @typedef {new (url: string, protocols?: string[]) => Socket} SocketClass */
/**
 * @typedef {object} Dialling
 * @property {string[]} protocols
 * @property {SocketClass} [WebSocket]
 * @property {number} reconnectMs
 */
/**
 * Connect, and wait for the server's first words. The first time that this fails, it has failed.
 * @param {string} url
 * @param {Dialling} options
 * @param {AbortSignal} [signal]
 */
export function openConnection(url: string, options: Dialling, signal?: AbortSignal): Promise<Connection>;
/**
 * What is used of a WebSocket: a browser's, Node's, or that of the package `ws`.
 */
export type Socket = {
    send: (text: string) => void;
    close: (code?: number) => void;
    addEventListener: (type: any, listener: (event: any) => void) => void;
};
export type SocketClass = new (url: string, protocols?: string[]) => Socket;
export type Dialling = {
    protocols: string[];
    WebSocket?: SocketClass | undefined;
    reconnectMs: number;
};
import { Connection } from "./connection.js";
