"""The `start` frames that a request of OpenAI's API stands for, by prompt: one for its first choice, and for
the others forks of that, which begin where its output does."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from msgspec import UNSET, UnsetType

from midstream.protocol import MAX_MILLISECONDS, MAX_TRACEPARENT, Fork, Grammar, Message, Params, Start
from realtime.http.openai.errors import FieldRefusal
from realtime.http.openai.requests import (
    CHOICE_LIMIT,
    Body,
    ChatBody,
    JsonObjectFormat,
    JsonSchemaFormat,
    TextBody,
    TextFormat,
)
from realtime.hub.frame_tokenizing import check_contents, check_tools
from realtime.refusal import Refusal

LONGEST_ID = 128  # as in a frame
TEXT_MAX_TOKENS = 16  # OpenAI's own default for completions, and for them alone
GRACE_MS = 10_000  # that a request with a name of its own waits for a retry


def starts(
    body: Body, request_id: str, traceparent: str | None = None, *, max_grace_ms: int = MAX_MILLISECONDS
) -> list[list[Start]]:
    """For each prompt its choices, in the order of their indices. The first has the request's own id.
    `max_grace_ms` bounds what is not asked for; what is, and is too much, will be refused. A `traceparent`
    that is too long names no trace."""
    prompts, params = _asked(body)
    if len(prompts) * body.n > CHOICE_LIMIT:
        raise FieldRefusal("n", f"`n` times the number of prompts must be at most {CHOICE_LIMIT}.")
    last = _id_of(request_id, len(prompts) * body.n - 1)
    if len(last) > LONGEST_ID:
        raise FieldRefusal(
            "request_id",
            "`request_id`, or the header `X-Request-Id`, is too long: with the number of its last choice it "
            f"has {len(last)} characters; it may have {LONGEST_ID}.",
        )
    if traceparent is not None and len(traceparent) > MAX_TRACEPARENT:
        traceparent = None  # it stands in a header, which may be much longer, and each stream would keep it
    tools = _tools(body)
    start = partial(
        Start,
        model=body.model,
        priority=body.priority,
        timeout_ms=body.timeout_ms,
        on_disconnect=body.on_disconnect or ("pause" if body.request_id else "cancel"),
        grace_ms=min(GRACE_MS, max_grace_ms) if body.grace_ms is None else body.grace_ms,
        on_cold=body.on_cold,
        traceparent=traceparent,
    )
    found = []
    for at, prompt in enumerate(prompts):
        first, *others = (_id_of(request_id, at * body.n + choice) for choice in range(body.n))
        fork = Fork(request_id=first, at=0)
        forks = [
            start(request_id=other, fork=fork, params=_of_choice(params, choice))
            for choice, other in enumerate(others, 1)
        ]
        found.append([start(request_id=first, params=params, **prompt, **tools), *forks])
    return found


def _asked(body: Body) -> tuple[list[dict[str, Any]], Params]:
    values = {name: getattr(body, name) for name in Params.__struct_fields__}
    if isinstance(body, ChatBody):
        return [{"messages": _messages(body)}], Params(**values | _of_chat(body))
    assert isinstance(body, TextBody)
    if body.best_of not in (None, 1, body.n):
        raise FieldRefusal(
            "best_of", "`best_of` must be as large as `n`: all choices are told.", "unsupported"
        )
    if values["max_tokens"] is UNSET:
        values["max_tokens"] = TEXT_MAX_TOKENS
    prompts = body.prompts
    if not prompts:
        raise FieldRefusal("prompt", "`prompt` must not be an empty list.")
    return [{"prompt": prompt} for prompt in prompts], Params(**values)


def _tools(body: Body) -> dict[str, Any]:
    if not isinstance(body, ChatBody):
        return {}
    asked: dict[str, Any] = {
        "tools": body.tools or None,
        "tool_choice": body.tool_choice,
        "parallel_tool_calls": body.parallel_tool_calls,
    }
    messages = _messages(body)
    try:
        check_contents(messages)
        check_tools(Start(request_id="-", messages=messages, params=Params(grammar=_grammar(body)), **asked))
    except Refusal as refusal:
        field = re.search(r"`(tools|tool_choice|messages\[\d+\])`", refusal.message)
        raise FieldRefusal(field[1] if field else "tools", refusal.message, refusal.code) from None
    return asked


def _of_chat(body: ChatBody) -> dict[str, Any]:
    if body.top_logprobs is not None and not body.logprobs:
        raise FieldRefusal("top_logprobs", "`top_logprobs` says something with `logprobs: true` alone.")
    most = body.max_tokens if body.max_completion_tokens is UNSET else body.max_completion_tokens
    if body.max_tokens not in (UNSET, most):
        raise FieldRefusal(
            "max_tokens", "`max_tokens` and `max_completion_tokens` differ: leave one of them out."
        )
    logprobs = (body.top_logprobs or 0) if body.logprobs else UNSET
    return {"max_tokens": most, "logprobs": logprobs, "grammar": _grammar(body)}


def _grammar(body: ChatBody) -> Grammar | UnsetType | None:
    if body.grammar and not isinstance(body.response_format, TextFormat):
        raise FieldRefusal("grammar", "`grammar` and `response_format` both say what the answer must be.")
    match body.response_format:
        case JsonSchemaFormat(json_schema=named):
            return Grammar(json_schema=named.schema)
        case JsonObjectFormat():
            return Grammar(json_schema={"type": "object"})
        case _:
            return body.grammar


def grammar_names(body: Body) -> dict[str, str]:
    """What a start calls otherwise than the request that it stands for."""
    if not isinstance(body, ChatBody) or isinstance(body.response_format, TextFormat):
        return {}
    return {
        "`params.grammar.json_schema`": "`response_format.json_schema.schema`",
        "`grammar`": "`response_format`",
    }


def _messages(body: ChatBody) -> list[Message]:
    return [
        Message(
            role="system" if turn.role == "developer" else turn.role,
            content=turn.content,
            name=turn.name,
            tool_calls=turn.tool_calls,
            tool_call_id=turn.tool_call_id,
            reasoning_content=turn.reasoning_content,
        )
        for turn in body.messages
    ]


def _id_of(request_id: str, index: int) -> str:
    return f"{request_id}:{index}" if index else request_id


def _of_choice(params: Params, choice: int) -> Params:
    """What it has not from the first: with the same seed it would be the same."""
    if params.seed is UNSET:
        return Params()
    return Params(seed=(params.seed + choice + 2**63) % 2**64 - 2**63)
