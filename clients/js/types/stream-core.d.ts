/**
 * @typedef {object} Chunk A piece of output, and the text that became whole with it. `text` may be empty: a
 *   token may end within a character. Chunks join without a gap; where one begins before the last one's
 *   `end`, the output from its `index` on was rewound, and this chunk stands in its place.
 * @property {number} index the first of its tokens
 * @property {number} count how many tokens it is of
 * @property {string} text
 * @property {number[] | null} tokens their ids, if the stream was started with `return_tokens: true`
 * @property {TokenLogprob[] | null} logprobs
 * @property {number} end the index after its last token: what `rewind` and `at` take to go on right behind it
 */
/** @typedef {{text: string, index: number, tokens?: number[]}} Had What somebody has of a stream already. */
/** @typedef {{window: number | null, had?: Had}} ReadOptions How a stream is read. */
/** The output of one stream so far, and what of it has been taken. */
export class StreamCore {
    /**
     * @param {number | null} window tokens that may be decoded beyond those taken; null leaves credit to the
     *   server. A window no larger than one chunk is pure pull: what is asked for is granted, nothing ahead.
     * @param {number} interval tokens in a chunk
     * @param {Credit} [credit] what was granted at the start
     */
    constructor(window?: number | null, interval?: number, credit?: Credit);
    /** @type {string | null} */ model: string | null;
    /** @type {number | null} */ promptTokens: number | null;
    /** @type {string | null} */ fingerprint: string | null;
    /** @type {Params} */ params: Params;
    /** @type {Final | null} */ final: Final | null;
    /** @type {PauseReason | null} */ pauseReason: PauseReason | null;
    /** All text that has come and still stands, taken or not. */
    text: string;
    /** @type {number[]} The ids of the tokens that have come and still stand. */
    tokens: number[];
    /** What has come beside the text, and still stands. */
    spans: Spans;
    /** What the client has told it, among what it says. */
    told: Told;
    /** The output tokens that have come and still stand; */
    index: number;
    /** those of them that were taken. */
    consumed: number;
    /** Where it went on, each time that it was started again. @type {Restarted[]} */
    restarts: Restarted[];
    epoch: number;
    /**
     * Begin in the middle, behind event `seq`: what stood then has been taken.
     * @param {number} seq @param {Had} had
     */
    startAt(seq: number, { text, index, tokens }: Had): void;
    /** The last event that has come; -1 for none. */
    get seq(): number;
    /** The limit that was granted last; 0 where credit is the server's. */
    get granted(): number;
    /** @returns {"running" | "paused" | "finished"} */
    get state(): "running" | "paused" | "finished";
    /**
     * One more chunk is asked for: the limit to grant for it, or null where enough was granted before.
     * @returns {number | null}
     */
    extendCredit(): number | null;
    /** The next chunk, if one has come. @returns {Chunk | null} */
    take(): Chunk | null;
    /** Whether it is to go on as another stream, that begins as it stands. */
    get restarting(): boolean;
    /** Events are counted anew. */
    restart(): void;
    /**
     * Whether what is told of the other stream is what has come of this one.
     * @param {StreamEvent} event
     */
    goesOnWith(event: StreamEvent): boolean;
    /**
     * What is to come behind that: what was lost on its way, of what lies beside the last tokens, as the last of the events
     * for which it stands.
     * @param {Snapshot} begun @returns {Beside[]}
     */
    missing(begun: Snapshot): Beside[];
    /** That it goes on so, as its reader hears of it. @param {Snapshot} begun @param {string[]} again @returns {Restarted} */
    restarted(begun: Snapshot, again: string[]): Restarted;
    /**
     * Take the stream's next event. Throws ProtocolError for one that cannot come here.
     * @param {StreamEvent} event
     * @returns {boolean} whether it was new
     */
    receive(event: StreamEvent): boolean;
    /** What was asked took effect, as a snapshot alone may tell. @param {RequestFrame} frame @param {Answer} answer */
    answered(frame: RequestFrame, answer: Answer): void;
    #private;
}
/**
 * A piece of output, and the text that became whole with it. `text` may be empty: a
 *   token may end within a character. Chunks join without a gap; where one begins before the last one's
 *   `end`, the output from its `index` on was rewound, and this chunk stands in its place.
 */
export type Chunk = {
    /**
     * the first of its tokens
     */
    index: number;
    /**
     * how many tokens it is of
     */
    count: number;
    text: string;
    /**
     * their ids, if the stream was started with `return_tokens: true`
     */
    tokens: number[] | null;
    logprobs: TokenLogprob[] | null;
    /**
     * the index after its last token: what `rewind` and `at` take to go on right behind it
     */
    end: number;
};
/**
 * What somebody has of a stream already.
 */
export type Had = {
    text: string;
    index: number;
    tokens?: number[];
};
/**
 * How a stream is read.
 */
export type ReadOptions = {
    window: number | null;
    had?: Had;
};
import type { Params } from "./protocol.js";
import type { Final } from "./protocol.js";
import type { PauseReason } from "./protocol.js";
import { Spans } from "./spans.js";
import { Told } from "./told.js";
import type { Restarted } from "./protocol.js";
import type { StreamEvent } from "./protocol.js";
import type { Snapshot } from "./protocol.js";
import type { Beside } from "./protocol.js";
import type { RequestFrame } from "./protocol.js";
import type { Answer } from "./protocol.js";
import type { Credit } from "./protocol.js";
import type { TokenLogprob } from "./protocol.js";
