"""Frame tokenizing: what a frame says, in the model's tokens.

Pure, and safe to call from any thread: long texts take their time. It knows what forms text comes in, and
refuses what has none or does not fit the model; it knows no stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b

import msgspec
from msgspec import UNSET, Struct

from midstream import protocol
from midstream.protocol import (
    Guard,
    Message,
    NamedTool,
    Params,
    Past,
    PastAdjust,
    PastInject,
    StreamFrame,
    Tool,
)
from realtime.guards import check as guards
from realtime.hub import free_values
from realtime.hub.output_rules import output_rules
from realtime.refusal import Refusal
from realtime.stream.context import Context
from realtime.stream.params import resolved
from realtime.stream.past import begun
from realtime.stream.weights import grammar_length
from realtime.text import grammar
from realtime.text.chat_template import NotBriefError, TextError
from realtime.text.decoded_turn import Turns
from realtime.text.grammar import OutputRules
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import TooManyTokensError
from realtime.tools.json_scanner import signs_in

CHARACTERS_A_TOKEN = 4  # about, where a text's tokens were not counted
# What it takes to compile a grammar, and one with a character more, in characters of other text.
GRAMMAR, GRAMMAR_CHARACTER = 20_000, 100
GUARD_CHARACTER = 500  # and so guards, each character of their expressions; fewer where there are few
# What it takes to read a past again, in characters of other text: a token, or a call's id; a step of its
# steering; in that a bias, a character of a stop string, and one of a grammar; and turns, beside what they
# say.
PAST_TOKEN, PAST_STEP, PAST_TURNS = 16, 250, 4000
PAST_BIAS, PAST_STOP_CHARACTER, PAST_GRAMMAR_CHARACTER = 10, 60, 25
MESSAGE = 32  # a message, beside what it says: a template has its words around it
TOOLS_LIMIT = 128 << 10  # characters of all of a stream's tools, as JSON
MOST_SIGNS = 128 << 10  # outside of strings, in a call's arguments: some 10 ms

_encode = msgspec.msgpack.Encoder().encode


def start_digest(frame: protocol.Start) -> bytes:
    """What a start asks for, whatever `ref` it was asked under, and in whose trace."""
    asked = msgspec.structs.replace(frame, ref=None, traceparent=None)
    try:
        try:
            said = _encode(asked)
        except OverflowError:  # a number beyond 64 bits, which a tool may have
            said = msgspec.json.encode(asked)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return b""  # too deep, or not JSON: it is like no content that was ever accepted
    return blake2b(said, digest_size=16).digest()


def text_length(frame: StreamFrame) -> int:
    """In characters; a grammar's are worth more of them, and those of guards."""
    asked = _grammar(frame)
    compiled = 0 if asked is None else GRAMMAR + GRAMMAR_CHARACTER * grammar_length(asked)
    if isinstance(frame, protocol.Start) and _has_tools(frame):
        compiled += GRAMMAR + GRAMMAR_CHARACTER * tools_length(frame.tools or [])
    return compiled + length_of_known(frame)


def length_of_known(frame: StreamFrame) -> int:
    """The same, where no grammar need be compiled."""
    read = guards_length(_guards(frame))
    if isinstance(frame, protocol.Start) and frame.past is not None:
        read += sum(map(_step_length, frame.past.steering))
    return read + _written(frame)


def is_ruled(frame: StreamFrame) -> bool:
    """Whether it has a grammar, a client's own or that of its tools, which is compiled if it is not known."""
    return _grammar(frame) is not None or (isinstance(frame, protocol.Start) and _has_tools(frame))


def _has_tools(start: protocol.Start) -> bool:
    return bool(start.tools) and start.tool_choice != "none"


def guards_length(asked: list[Guard]) -> int:
    expressions = sum(map(guards.written_length, guards.expressions(asked)))
    return expressions * min(expressions, GUARD_CHARACTER)


def _step_length(step: PastAdjust | PastInject) -> int:
    """Beside the text that it brings."""
    if isinstance(step, PastInject):
        return PAST_TURNS if step.messages else PAST_STEP
    stop, biases, asked = step.params.stop, step.params.logit_bias, step.params.grammar
    length = PAST_STEP + PAST_BIAS * len(biases or ())
    length += PAST_STOP_CHARACTER * sum(map(len, [stop] if isinstance(stop, str) else stop or ()))
    return length + (PAST_GRAMMAR_CHARACTER * grammar_length(asked) if asked else 0)


def _grammar(frame: StreamFrame) -> protocol.Grammar | None:
    if not isinstance(frame, protocol.Start | protocol.Adjust):
        return None
    asked = frame.params.grammar
    if isinstance(frame, protocol.Start) and frame.past is not None:
        adjusts = [step.params for step in frame.past.steering if isinstance(step, PastAdjust)]
        asked = next((params.grammar for params in reversed(adjusts) if params.grammar is not UNSET), asked)
    return asked or None


def _guards(frame: StreamFrame) -> list[Guard]:
    asked = frame.params.guards if isinstance(frame, protocol.Start | protocol.Adjust) else None
    return asked or []


def _written(frame: StreamFrame) -> int:
    past = 0
    if isinstance(frame, protocol.Start) and frame.past is not None:
        past = PAST_TOKEN * (len(frame.past.tokens) + len(frame.past.call_ids))
        past += sum(map(_put_in_length, _put_in(frame.past)))
    match frame:
        case protocol.Start(prompt=str() as text):
            return past + len(text)
        case protocol.Start(messages=list() as messages, tools=tools):
            return past + sum(map(_message_length, messages)) + (tools_length(tools) if tools else 0)
        case protocol.Inject():
            return _put_in_length(frame)
        case protocol.ToolResult():
            return _message_length(_told(frame))
    return past


def _put_in_length(inject: protocol.Inject | PastInject) -> int:
    return len(inject.text or "") + sum(map(_message_length, inject.messages or ()))


def _put_in(past: Past) -> list[PastInject]:
    """As it is written: to make frames of thousands takes as long as to read them."""
    return [step for step in past.steering if isinstance(step, PastInject)]


def _told(result: protocol.ToolResult) -> Message:
    """About what the model is told of it."""
    return Message(role="tool", content=result.error if result.content is None else result.content)


def past_injects(frame: protocol.Start) -> list[protocol.Inject]:
    return [
        protocol.Inject(
            request_id=frame.request_id, text=step.text, messages=step.messages, tokens=step.tokens
        )
        for step in (() if frame.past is None else _put_in(frame.past))
    ]


def _message_length(message: Message) -> int:
    length = MESSAGE + len(message.role) + len(message.name or "")
    length += sum(map(len, message.texts)) + len(message.reasoning_content or "")
    if message.tool_calls:
        length += sum(
            len(call.id) + len(call.function.name) + len(call.function.arguments)
            for call in message.tool_calls
        )
    return length


def tools_length(tools: list[Tool]) -> int:
    """As JSON. What can be none, as MessagePack can say it, is as long as what is too long."""
    try:
        return len(msgspec.json.encode(tools))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return TOOLS_LIMIT + 1


def brings_text(frame: StreamFrame) -> bool:
    match frame:
        case protocol.Start(prompt=str()) | protocol.Start(messages=list()) | protocol.Start(past=Past()):
            return True
        case protocol.Inject(text=str()) | protocol.Inject(messages=list()):
            return True
    return _grammar(frame) is not None or bool(_guards(frame))


def stops(frame: StreamFrame) -> bool:
    """Whether it asks for less, and not for more."""
    return isinstance(frame, protocol.Pause | protocol.Cancel)


def estimated_tokens(frame: StreamFrame) -> int:
    """What a text is charged as that was worked at in vain."""
    asked = _grammar(frame)
    ruled = sum(map(len, guards.expressions(_guards(frame))))
    ruled += 0 if asked is None else grammar_length(asked)
    return 1 + (_written(frame) + ruled) // CHARACTERS_A_TOKEN


def check_length(frame: StreamFrame, model: ServedModel) -> None:
    """Refuse a text whose tokens cannot fit, whichever they are, without making them, and tools that cannot
    be had: this is quick."""
    if isinstance(frame, protocol.Start):
        check_tools(frame)
    match frame:
        case protocol.Start(prompt=str() as text) | protocol.Inject(text=str() as text):
            texts = [text]
        case protocol.ToolResult():
            texts = _told(frame).texts
        case _:
            return
    with _refusing(frame, model):
        for text in texts:
            model.tokenizer.check_length(text, below=model.context)


class Opening(Struct):
    """What a stream begins with, and its past, if it has one. `params`: those of its first token."""

    params: Params
    context: Context

    def __len__(self) -> int:
        return len(self.context)


Tokenized = list[int] | Opening


def tokenize(
    frame: StreamFrame, model: ServedModel, turns: Turns | None = None, *, brief: bool = False
) -> Tokenized | None:
    """The tokens of whatever text a frame brings, and its grammar and guards tried; of a start with tools or
    a past all that it begins with, which takes long. `turns`: of a conversation, that were decoded here.
    `brief`: raise `NotBriefError` where a chat takes long."""
    past = frame.past if isinstance(frame, protocol.Start) else None
    if past is not None:
        free_values.check_past(past)
    tokens = _tokenize(frame, model, turns, brief=brief)
    if not isinstance(frame, protocol.Start) or not (past or frame.tools):
        return tokens
    put_in: list[list[int]] = []
    if past is not None:
        _check_unguarded(frame.params, past)
        with _refusing(frame, model):
            _known(past.tokens, "past.tokens", model)
            put_in = [_injection(put_in, model, brief) for put_in in past_injects(frame)]
    return opening(frame, tokens or [], checked_params(frame, tokens or [], model), model, put_in)


def tokenize_of_known(frame: StreamFrame, model: ServedModel, turns: Turns | None = None) -> Tokenized | None:
    """The same; raises `NotKnownError` where a grammar would have to be compiled."""
    with grammar.of_known():
        return tokenize(frame, model, turns)


def _check_unguarded(params: Params, past: Past) -> None:
    adjusts = [step.params for step in past.steering if isinstance(step, PastAdjust)]
    if any(each.guards for each in [params, *adjusts]):
        raise Refusal(
            "unsupported",
            "A start with a `past` has no `guards`: they would not have judged that; adjust them in.",
        )


def opening(
    frame: protocol.Start,
    prompt: list[int],
    params: Params,
    model: ServedModel,
    put_in: Sequence[list[int]] = (),
) -> Opening:
    *_, whole = openings(frame, prompt, params, output_rules(frame, prompt, model), model, put_in)
    return whole


def openings(
    frame: protocol.Start,
    prompt: list[int],
    params: Params,
    rules: OutputRules | None,
    model: ServedModel,
    put_in: Sequence[list[int]],
) -> Iterator[Opening]:
    """As far as its past is read, and in the end all of it. `params`: complete; `put_in`: the tokens of each
    inject of its past."""
    return (Opening(params, context) for context in begun(frame, prompt, params, rules, model, put_in))


def _tokenize(
    frame: StreamFrame, model: ServedModel, turns: Turns | None, *, brief: bool
) -> list[int] | None:
    guards.check(_guards(frame))
    asked = _grammar(frame)
    if asked is not None:
        _check_grammar(asked, model)
    with _refusing(frame, model):
        match frame:
            case protocol.Start(prompt=str() as text):
                return _computable(model.tokenizer.encode(text, below=model.context), model)
            case protocol.Start(prompt=list() as tokens):
                return _known(tokens, "prompt", model)
            case protocol.Start(messages=list() as messages):
                check_contents(messages)
                tools = frame.tools if frame.tool_choice != "none" else None
                prompt = model.tokenizer.encode_chat(
                    messages, tools, below=model.context, brief=brief, turns=turns
                )
                return _computable(prompt, model)
            case protocol.Inject():
                return _injection(frame, model, brief)
    return None


def _check_grammar(asked: protocol.Grammar, model: ServedModel) -> None:
    if not model.grammars:
        raise Refusal("unsupported", f'The model "{model.name}" has a tokenizer that no grammar can follow.')
    try:
        grammar.check(asked)
    except TextError as error:
        raise Refusal("invalid_params", str(error)) from None


def check_contents(messages: list[Message]) -> None:
    """Refuse what only a message that says something else can be without, and arguments of so many values
    that to read and to write them would keep the interpreter for long."""
    for at, message in enumerate(messages):
        if message.content is None and not (message.role == "assistant" and message.tool_calls):
            raise Refusal(
                "invalid_frame",
                f"Missing the field `content` in `messages[{at}]`: only an assistant's message with "
                "`tool_calls` can be without.",
            )
        for call in message.tool_calls or ():
            _check_arguments(call.function.arguments, at)


def _check_arguments(arguments: str, at: int) -> None:
    if len(arguments) > MOST_SIGNS and (signs := signs_in(arguments)) > MOST_SIGNS:
        raise Refusal(
            "invalid_frame",
            f"The `arguments` of a call in `messages[{at}]` have {signs} characters outside of strings; they "
            f"may have {MOST_SIGNS}.",
        )


def check_tools(frame: protocol.Start) -> None:
    """Refuse what is asked of tools and cannot be done, before anything is made of it."""
    names = [tool.function.name for tool in frame.tools or ()]
    match frame.tool_choice:
        case NamedTool(function=function) if function.name not in names:
            raise Refusal(
                "invalid_frame", f'`tool_choice` names "{function.name}", which is no tool of `tools`.'
            )
        case "required" if not names:
            raise Refusal("invalid_frame", '`tool_choice` is "required", and there are no `tools`.')
    if isinstance(frame.approvals, list) and frame.fork is None:
        unknown = next((name for name in frame.approvals if name not in names), None)
        if unknown is not None:
            raise Refusal("invalid_frame", f'`approvals` names "{unknown}", which is no tool of `tools`.')
    if not frame.tools:
        return
    if frame.messages is None:
        raise Refusal(
            "invalid_frame", "`tools` go with `messages`: a `prompt` is told to the model as it is."
        )
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise Refusal("invalid_frame", f'`tools` has two with the name "{twice}".')
    length = tools_length(frame.tools)
    if length > TOOLS_LIMIT:
        raise Refusal(
            "invalid_frame",
            f"`tools` are {length} characters as JSON, or none; the limit is {TOOLS_LIMIT}.",
        )


@contextmanager
def _refusing(frame: StreamFrame, model: ServedModel) -> Iterator[None]:
    """What is wrong with a text, as a refusal of the frame that brought it."""
    try:
        yield
    except NotBriefError:
        raise
    except TooManyTokensError as error:
        named = {protocol.Start: "prompt", protocol.Inject: "inject"}
        kind = named.get(type(frame), "tool_result")
        raise Refusal(
            "context_too_long",
            f"The {kind} has at least {error.fewest} tokens; the model's context holds {model.context}, "
            "with output.",
        ) from None
    except TextError as error:
        raise Refusal("invalid_frame", str(error)) from None


def _injection(frame: protocol.Inject, model: ServedModel, brief: bool) -> list[int]:
    if sum(given is not None for given in (frame.text, frame.messages, frame.tokens)) != 1:
        raise Refusal("invalid_frame", "An inject has one of `text`, `messages` and `tokens`.")
    if frame.tokens is not None:
        return _known(frame.tokens, "tokens", model)
    if frame.messages is not None:
        check_contents(frame.messages)
        turns = model.tokenizer.encode_turns(frame.messages, below=model.context, brief=brief)
        return _computable(turns, model)
    tokens = model.tokenizer.encode(frame.text or "", special=False, below=model.context)
    if not tokens:
        raise Refusal("invalid_frame", "The `text` of the inject is empty: there is nothing to inject.")
    return _computable(tokens, model)


def _known(tokens: list[int], field: str, model: ServedModel) -> list[int]:
    if len(tokens) >= model.context:
        raise TooManyTokensError(len(tokens))
    if (highest := model.highest_beyond(tokens)) is not None:
        raise Refusal(
            "invalid_frame", f"`{field}` has token {highest}; this model's tokens are 0 to {model.vocab - 1}."
        )
    return tokens


def _computable(tokens: list[int], model: ServedModel) -> list[int]:
    """Of a text."""
    if model.tokenizer.vocab > model.vocab and (highest := model.highest_beyond(tokens)) is not None:
        raise Refusal(
            "invalid_frame",
            f"The text has token {highest} of the tokenizer of this model, whose own tokens are 0 to "
            f"{model.vocab - 1}.",
        )
    return tokens


def checked_params(frame: protocol.Start, prompt: list[int], model: ServedModel) -> Params:
    """The start's parameters, complete, if the prompt leaves room for an answer."""
    if not prompt:
        raise Refusal("invalid_frame", "The prompt is empty: a model needs at least one token to go on from.")
    if len(prompt) >= model.context:
        raise Refusal(
            "context_too_long",
            f"The prompt has {len(prompt)} tokens; the model's context holds {model.context}, with output.",
        )
    return resolved(frame.params, context_left=model.context - len(prompt), vocab=model.vocab)
