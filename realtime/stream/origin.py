"""What a stream begins with: a prompt, parameters, and output that stands already where it is a fork."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from midstream import protocol
from midstream.protocol import Params
from realtime.stream.accumulated_output import Output
from realtime.stream.params import stops
from realtime.stream.spanned_text import SpannedText
from realtime.text.grammar import OutputRules
from realtime.text.served_model import ServedModel
from realtime.tools.offered import offered


class Origin(NamedTuple):
    prompt: array[int]
    params: Params
    output: Output
    rules: OutputRules | None
    # Tokens behind the prompt before each beginning of the grammar, if it has one.
    grammar_starts: tuple[int, ...] = (0,)


def of_prompt(
    start: protocol.Start, prompt: list[int], params: Params, rules: OutputRules | None, model: ServedModel
) -> Origin:
    spans = _spans(start, prompt, params, model)
    output = Output(model.tokenizer, stops(params), params.min_tokens or 0, spans)
    return Origin(array("i", prompt), params, output, rules)


def _spans(
    start: protocol.Start, prompt: list[int], params: Params, model: ServedModel
) -> SpannedText | None:
    """The reader of its output, where a conversation offers tools, or the model reasons."""
    tools = start.tools if start.tool_choice != "none" else None
    if start.messages is None or not (tools or model.tokenizer.spelling.has_reasoning):
        return None
    return SpannedText(
        model.tokenizer,
        start.request_id,
        offered(tools) if tools else None,
        prompt,
        stops(params),
        params.min_tokens or 0,
        one_call=start.on_tool_call == "finish" and not start.parallel_tool_calls,
    )
