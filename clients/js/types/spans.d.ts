export class Spans {
    /** What the model has said to itself, of what stands. */
    reasoning: string;
    /** @type {Call[]} whole ones, and perhaps one that is being written */
    calls: Call[];
    /** Calls that have begun, also those that were taken back. */
    told: number;
    /** The last end of a call that stands by the last snapshot as it stood. */
    stoodUntil: number;
    /** @param {Beside | Approved} event */
    receive(event: Beside | Approved): void;
    /** @param {Rewound} event */
    rewind({ index, reasoning_length, tool_calls, arguments_length }: Rewound): void;
    /** @param {Snapshot} event */
    receiveSnapshot({ reasoning, tool_calls }: Snapshot): void;
    /**
     * What stands in the tokens from `since` on and has not come: the events that tell it. Null where what has come does not
     * stand there.
     * @param {Snapshot} begun @param {number} since @returns {Beside[] | null}
     */
    missing({ request_id, seq, index: end, reasoning, tool_calls }: Snapshot, since: number, ...args: any[]): Beside[] | null;
    #private;
}
import type { Call } from "./protocol.js";
import type { Beside } from "./protocol.js";
import type { Approved } from "./protocol.js";
import type { Rewound } from "./protocol.js";
import type { Snapshot } from "./protocol.js";
