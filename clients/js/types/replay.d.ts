/**
 * Throws where it cannot be played: it is a fork, or the server does something else; and a MidstreamError where the server
 * refuses it, or is not there.
 * @param {Client} client @param {StreamRecord} record
 * @param {{signal?: AbortSignal, onchunk?: (chunk: Chunk) => void}} [options]
 * @returns {Promise<Replay>}
 */
export function replay(client: Client, record: StreamRecord, { signal, onchunk }?: {
    signal?: AbortSignal;
    onchunk?: (chunk: Chunk) => void;
}): Promise<Replay>;
export type OutputToken = {
    token: number;
    text: string | null;
    logprob: number | null;
};
/**
 * The first token that is another. null stands for an end before it.
 */
export type Difference = {
    index: number;
    recorded: OutputToken | null;
    replayed: OutputToken | null;
    /**
     * where it is among the most likely
     */
    recordedLogprobHere: number | null;
};
/**
 * What came of a replay: it is equal if there is no difference.
 */
export type Replay = {
    equal: boolean;
    /**
     * that were compared
     */
    tokens: number;
    difference: Difference | null;
    recordedFingerprints: string[];
    replayedFingerprints: string[];
    sameFingerprint: boolean;
    recordedPromptTokens: number;
    replayedPromptTokens: number;
};
/**
 * A control, or the end, and the output before it: that from `begin` on, which no rewind cut.
 */
export type Step = {
    control: ControlLine | GuardLine | FinalLine | null;
    begin: number;
    output: OutputToken[];
    /**
     * where the stream stood, as its reader knows
     */
    place: number;
    /**
     * whether it ended by itself
     */
    ends: boolean;
};
import type { Client } from "./client.js";
import type { StreamRecord } from "./record-format.js";
import type { Chunk } from "./stream-core.js";
import type { ControlLine } from "./record-format.js";
import type { GuardLine } from "./record-format.js";
import type { FinalLine } from "./record-format.js";
