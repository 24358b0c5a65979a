"""What a client knows of a stream that nobody else knows any more, as the context of one that goes on there.

Its output is taken as given, token for token, and what it was told stands where it stood, so that all that
hangs on that (text, calls, where a grammar began) is as it was. Pure; it takes as long as there are tokens
and steps, and others may have their turn in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from midstream import protocol
from midstream.protocol import Params, PastAdjust, PastInject
from realtime.refusal import Refusal
from realtime.stream.context import Context, of_prompt
from realtime.stream.engine_commands import append_for
from realtime.stream.params import merged, stops
from realtime.text.grammar import OutputRules
from realtime.text.served_model import ServedModel

A_TURN = 64  # tokens, before others may have their turn


def begun(
    start: protocol.Start,
    prompt: list[int],
    params: Params,
    rules: OutputRules | None,
    model: ServedModel,
    put_in: Sequence[list[int]],
) -> Iterator[Context]:
    """Yields it as far as it is read, and in the end all of it. `params` are those that it began with,
    `put_in` the tokens of each inject of its past. Raises Refusal where it could not have gone on behind."""
    context = of_prompt(start, prompt, params, rules, model)
    if start.past is None:
        yield context
        return
    past = start.past
    if past.waits and (start.on_tool_call == "finish" or not context.offers_tools):
        raise Refusal(
            "invalid_frame",
            "`past.waits` is true, and it could not wait for results of calls: that is so where there are "
            '`tools` to be called, and `on_tool_call` is not "finish".',
        )
    _name_calls(context, past)
    injections = iter(put_in)
    for step in past.steering:
        if not len(context.output) <= step.index <= len(past.tokens):
            raise Refusal(
                "invalid_frame",
                f"`past.steering` has a step at token {step.index}: they stand in their order, and none "
                f"behind the {len(past.tokens)} of `past.tokens`.",
            )
        for _ in _read(context, past.tokens, step.index):
            yield context
        if isinstance(step, PastAdjust):
            context.adjust(merged(context.params, step.params, vocab=model.vocab))
        else:
            for _ in _inject(context, start.request_id, step, next(injections)):
                yield context
        yield context
    for _ in _read(context, past.tokens, len(past.tokens)):
        yield context
    if len(context.output.calls) < len(past.call_ids):
        raise Refusal(
            "invalid_frame",
            f"`past.call_ids` has {len(past.call_ids)}, and {len(context.output.calls)} calls stand in "
            "its output: say those alone.",
        )
    _stand(context, past)
    asked_behind = any(step.index == len(past.tokens) for step in past.steering[-1:])
    _check(context, model, asked_behind=asked_behind)
    yield context.as_past(may_have_ended=not asked_behind)


def _name_calls(context: Context, past: protocol.Past) -> None:
    twice = next((call_id for call_id, times in Counter(past.call_ids).items() if times > 1), None)
    if twice is not None:
        raise Refusal("invalid_frame", f'`past.call_ids` has "{twice}" twice: no two calls have one id.')
    if context.output.spans is not None:
        told = len(past.call_ids) if past.told_calls is None else past.told_calls
        context.output.spans.name_calls(past.call_ids, told)


def _read(context: Context, tokens: list[int], until: int) -> Iterator[None]:
    """With a token it ends: a call that was put in, and was enough, ended it with the one behind."""
    for at, token in enumerate(tokens[len(context.output) : until], 1):
        context.output.add(token)
        if context.output.stopped is not None and len(context.output) < len(tokens):
            raise Refusal(
                "invalid_params",
                "`past.tokens` go beyond the end of the stream: with token "
                f"{len(context.output) - 1} it meets what it stops at.",
            )
        if not at % A_TURN:
            yield
    if context.output.spans is not None:
        context.output.spans.take_beside()  # it is told as a whole


def _inject(context: Context, request_id: str, step: PastInject, tokens: list[int]) -> Iterator[None]:
    frame = protocol.Inject(
        request_id=request_id, messages=step.messages, tokens=tokens, grammar=step.grammar
    )
    context.inject(append_for(0, frame, offers_tools=context.offers_tools), frame)
    spans = context.output.spans
    while spans is not None and spans.reading:
        yield
        spans.read_on()


def _stand(context: Context, past: protocol.Past) -> None:
    """So much of it was told: perhaps less of its text than is released, or what is told in the end alone."""
    output = context.output
    if past.text_length is not None:
        output.hold(past.text_length)
    told, stands = (past.text_length, past.reasoning_length, past.arguments_length), output.lengths
    more = [at for at, length in enumerate(told) if length is not None and length > stands[at]]
    if not more:
        return
    whole = output.flushed(stops(context.params))[0].lengths
    if any(told[at] == whole[at] for at in more):
        output.flush_with_last()


def _check(context: Context, model: ServedModel, *, asked_behind: bool) -> None:
    """`asked_behind`: perhaps that it has no more tokens than fewer, which ended it there."""
    most, index = context.params.max_tokens, len(context.output)
    assert isinstance(most, int), "they are complete"
    if most < index and not asked_behind:
        raise Refusal(
            "invalid_params",
            f"`params.max_tokens` is {most}, and `past` has {index} tokens: ask for more.",
        )
    if len(context) > model.context:
        raise Refusal(
            "context_too_long",
            f"The stream begins with {len(context)} tokens; the model's context holds {model.context}, "
            "with output.",
        )
