export class Spans {
    /** What the model has said to itself, of what stands. */
    reasoning: string;
    /** @type {Call[]} whole ones, and perhaps one that is being written */
    calls: Call[];
    /** @param {Reasoning | ToolCall | ToolArguments | ToolCallDone | Approved} event */
    receive(event: Reasoning | ToolCall | ToolArguments | ToolCallDone | Approved): void;
    /** @param {Rewound} event */
    rewind({ index, reasoning_length, tool_calls, arguments_length }: Rewound): void;
    /** @param {Snapshot} event */
    receiveSnapshot({ reasoning, tool_calls }: Snapshot): void;
    #private;
}
import type { Call } from "./protocol.js";
import type { Reasoning } from "./protocol.js";
import type { ToolCall } from "./protocol.js";
import type { ToolArguments } from "./protocol.js";
import type { ToolCallDone } from "./protocol.js";
import type { Approved } from "./protocol.js";
import type { Rewound } from "./protocol.js";
import type { Snapshot } from "./protocol.js";
