/**
 * @typedef {object} Socket What is used of a WebSocket: a browser's, Node's, or that of the package `ws`.
 * @property {(text: string) => void} send
 * @property {(code?: number) => void} close
 * @property {(type: any, listener: (event: any) => void) => void} addEventListener
 */
/** @typedef {new (url: string, protocols?: string[]) => Socket} SocketClass */
/** @typedef {string | (() => string | undefined | Promise<string | undefined>)} ApiKey A key, or who knows it. */
/** @typedef {Patience & {apiKey?: ApiKey, WebSocket?: SocketClass}} Dialling */
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
/**
 * A key, or who knows it.
 */
export type ApiKey = string | (() => string | undefined | Promise<string | undefined>);
export type Dialling = Patience & {
    apiKey?: ApiKey;
    WebSocket?: SocketClass;
};
import { Connection } from "./session.js";
import type { Patience } from "./reconnecting.js";
