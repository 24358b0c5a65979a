"""What the tools of a start, and its model's reasoning, make of its stream's grammar, or why they cannot:
which tools the model is held to, and by which schema.

A tool that is `strict` is held to its schema, or refused; one that does not say is, where that can be; and
one that is not may be called with anything. Where none is held, and none has to be called, there is no
grammar. It takes as long as a client's grammar does, and is quick where the same was asked lately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from midstream import protocol
from midstream.protocol import NamedTool, Tool
from realtime.refusal import Refusal
from realtime.text.chat_template import TextError
from realtime.text.grammar import (
    NotKnownError,
    OutputRules,
    Unknown,
    check_shape,
    problem_of,
    source_of_lark,
)
from realtime.text.served_model import ServedModel
from realtime.tools.call_grammar import ANY_ARGUMENTS, NO_ARGUMENTS, CallGrammar, HeldTool
from realtime.tools.definitions import UnspellableError
from realtime.tools.formats import is_delimited
from realtime.tools.spelling import TAIL_TOKENS, Spelling

ANSWER = "@answer"
MOST_TRIED = 32  # tools one by one, where they cannot be followed together


def output_rules(frame: protocol.Start, prompt: Sequence[int], model: ServedModel) -> OutputRules | None:
    """None where tools leave the output free, and it is its grammar's, if it has one, from its first
    token."""
    try:
        return _rules(frame, prompt, model)
    except NotKnownError as error:  # many may have to be tried, for which the prompt need not be kept
        again = partial(output_rules, frame, prompt[-TAIL_TOKENS:], model)
        raise NotKnownError(Unknown(error.unknown.looks, again)) from None


def _rules(frame: protocol.Start, prompt: Sequence[int], model: ServedModel) -> OutputRules | None:
    if frame.messages is None:
        return None
    spelling = model.tokenizer.spelling
    make = partial(
        CallGrammar,
        spelling,
        reasons=spelling.reasons_behind(prompt),
        headed=spelling.heads_behind(prompt),
    )
    held = _all_held(frame, model, make)
    if held:
        auto = partial(make, held, parallel=frame.parallel_tool_calls)
        free = OutputRules(auto(answer=None).lark(), auto(answer=ANSWER).lark())
        required = _required(frame, partial(make, answer=""), held)
        return free if required is None else OutputRules(required.lark(), required.lark(), free)
    if spelling.has_reasoning and model.grammars:
        return OutputRules(None, make([], parallel=False, answer=ANSWER).lark())
    return None


def _required(frame: protocol.Start, make: partial[CallGrammar], held: list[HeldTool]) -> CallGrammar | None:
    """Of the first turn: behind it there are results to answer."""
    match frame.tool_choice:
        case "required":
            return make(held, parallel=frame.parallel_tool_calls)
        case NamedTool(function=function):
            return make([tool for tool in held if tool.name == function.name], parallel=False)
    return None


def _all_held(frame: protocol.Start, model: ServedModel, make: partial[CallGrammar]) -> list[HeldTool]:
    """None of them where there is no grammar of tools."""
    if not frame.tools or frame.tool_choice == "none":
        return []
    required = frame.tool_choice != "auto"
    if not model.grammars:
        if required or any(tool.function.strict for tool in frame.tools):
            raise Refusal(
                "unsupported",
                f'The model "{model.name}" has a tokenizer that no grammar can follow: it cannot be made to '
                "call a tool, nor be held to `parameters`.",
            )
        return []
    spelling = model.tokenizer.spelling
    if frame.params.grammar and not is_delimited(spelling.tools):
        raise Refusal(
            "unsupported", "`tools` go without a `grammar`: this model's calls begin as an answer might."
        )
    held = [_held(tool, at, spelling) for at, tool in enumerate(frame.tools)]
    tried = partial(make, parallel=True, answer=None, as_text=True)
    if _problem_of(tried(held)):
        held = _all_tried(frame.tools, held, spelling)
    free = all(tool.schema is ANY_ARGUMENTS for tool in held)
    if free and not required and not frame.params.grammar:
        return []
    problem = _problem_of(tried(held))
    if problem:
        raise Refusal("invalid_params", f"`tools` cannot be followed together: {problem}.")
    return held


def _held(tool: Tool, at: int, spelling: Spelling) -> HeldTool:
    """As far as can be said without compiling its schema."""
    function = tool.function
    held = HeldTool(function.name, NO_ARGUMENTS if function.parameters is None else function.parameters)
    field = f"tools[{at}].function"
    problem = ""
    if function.strict is not False:
        try:
            check_shape(held.schema, f"{field}.parameters")
            CallGrammar(spelling, [held], answer="", parallel=False)
        except TextError as error:
            problem = str(error)
        except UnspellableError as error:
            problem = f"`{field}.parameters` cannot be held to: {error}."
        if not problem:
            return held
    return _free(tool, problem)


def _all_tried(tools: Sequence[Tool], held: Sequence[HeldTool], spelling: Spelling) -> list[HeldTool]:
    """What is unknown of them is told of together: to come as far as here takes long where they are many."""
    tried, looks = list[HeldTool](), list[Callable[[], object]]()
    for at, (tool, one) in enumerate(zip(tools, held, strict=True)):
        try:
            tried.append(_tried(tool, one, at, spelling))
        except NotKnownError as error:
            refused = bool(tool.function.strict)  # where it cannot be followed
            looks += [look if refused else partial(_regardless, look) for look in error.unknown.looks]
        except Refusal:
            if not looks:
                raise
            break  # perhaps one before it is
    if looks:
        raise NotKnownError(Unknown(looks))
    return tried


def _regardless(look: Callable[[], object]) -> None:
    """Of what comes of it."""
    look()


def _tried(tool: Tool, held: HeldTool, at: int, spelling: Spelling) -> HeldTool:
    """By itself, where not all together can be followed."""
    if held.schema is ANY_ARGUMENTS:
        return held
    problem = "there are too many" if at >= MOST_TRIED else ""
    alone = CallGrammar(spelling, [held], answer="", parallel=False, as_text=True)
    problem = problem or problem_of(source_of_lark(alone.lark()), briefly=True)
    if not problem:
        return held
    return _free(tool, f"`tools[{at}].function.parameters` cannot be followed: {problem}.")


def _free(tool: Tool, problem: str) -> HeldTool:
    if tool.function.strict:
        raise Refusal("invalid_params", problem)
    return HeldTool(tool.function.name, ANY_ARGUMENTS)


def _problem_of(grammar: CallGrammar) -> str:
    return problem_of(source_of_lark(grammar.lark()))
