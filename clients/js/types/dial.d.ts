/**
 * @typedef {object} Socket What is used of a WebSocket: a browser's, Node's, or that of the package `ws`.
 * @property {(text: string) => void} send
 * @property {(code?: number) => void} close
 * @property {number} [bufferedAmount] bytes that wait to be sent
 * @property {(type: any, listener: (event: any) => void) => void} addEventListener
 */
/** @typedef {new (url: string, protocols?: string[]) => Socket} SocketClass */
/** @typedef {string | (() => string | undefined | Promise<string | undefined>)} ApiKey A key, or who knows it. */
/** @typedef {Timeouts & {apiKey?: ApiKey, WebSocket?: SocketClass}} DialOptions */
/**
 * A session on a first connection, to any of these servers: where that fails at each of them, it has failed. Each has
 * its turn, whenever another connection is needed; clients begin anywhere, and so divide.
 * @param {string[]} urls
 * @param {DialOptions} options
 * @param {AbortSignal} [signal]
 */
export function openSession(urls: string[], options: DialOptions, signal?: AbortSignal): Promise<Session>;
/**
 * What is used of a WebSocket: a browser's, Node's, or that of the package `ws`.
 */
export type Socket = {
    send: (text: string) => void;
    close: (code?: number) => void;
    /**
     * bytes that wait to be sent
     */
    bufferedAmount?: number | undefined;
    addEventListener: (type: any, listener: (event: any) => void) => void;
};
export type SocketClass = new (url: string, protocols?: string[]) => Socket;
/**
 * A key, or who knows it.
 */
export type ApiKey = string | (() => string | undefined | Promise<string | undefined>);
export type DialOptions = Timeouts & {
    apiKey?: ApiKey;
    WebSocket?: SocketClass;
};
import { Session } from "./session.js";
import type { Timeouts } from "./reconnecting.js";
