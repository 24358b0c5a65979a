"""What OpenAI's clients may ask for: what is taken, what is refused by name, and which starts come of it."""

from __future__ import annotations

import json
import sys
import tracemalloc
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import asdict

from midstream.protocol import Fork, Grammar, Guard, MessageToolCall, Params, Start
from realtime.http.bodies_and_headers import MOST_FIELDS
from realtime.http.openai.errors import FieldRefusal, error_object
from realtime.http.openai.requests import CHOICE_LIMIT, MESSAGE_LIMIT, ChatBody, TextBody, read
from realtime.http.openai.starts import starts
from realtime.refusal import Refusal
from realtime.untyped import MOST_VALUES, quick_float

MESSAGES = [{"role": "user", "content": "Hello"}]
LONG = "f" * 100_000


def chat(**fields: Any) -> list[Start]:
    body = read(ChatBody, json.dumps({"messages": MESSAGES} | fields).encode())
    (choices,) = starts(body, body.request_id or "made")
    return choices


def text(**fields: Any) -> list[list[Start]]:
    return starts(read(TextBody, json.dumps({"prompt": "Once"} | fields).encode()), "made")


def made(kind: type[ChatBody | TextBody], data: bytes) -> list[list[Start]]:
    body = read(kind, data)
    return starts(body, body.request_id or "made")


def said_of(params: Params) -> dict[str, Any]:
    return {name: value for name, value in asdict(params).items() if value is not UNSET}


def refused(kind: type[ChatBody | TextBody], body: dict[str, Any] | bytes) -> dict[str, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(Refusal) as caught:
        made(kind, data)
    assert caught.value.status == 400
    error = error_object(caught.value)["error"]
    assert (error["type"], error["retryable"]) == ("invalid_request_error", False)
    return dict(error)


def test_all_sampling_fields_of_the_engine_pass_through() -> None:
    params = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "max_tokens": 9,
        "stop": ["\n", "END"],
        "seed": -4,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "logit_bias": {"5": -100},
        "ignore_eos": True,
        "min_tokens": 2,
        "reasoning_tokens": 7,
        "grammar": {"choice": ["yes", "no"], "force": False},
        "guards": [{"name": "quiet", "do": "tell", "regex": "x"}],
    }
    as_read = params | {
        "logit_bias": {5: -100.0},
        "grammar": Grammar(choice=["yes", "no"], force=False),
        "guards": [Guard(name="quiet", do="tell", regex="x")],
    }
    (start,) = chat(**params)
    assert said_of(start.params) == as_read
    ((start,),) = text(**params, logprobs=3)
    assert said_of(start.params) == as_read | {"logprobs": 3}
    assert set(said_of(start.params)) == set(Params.__struct_fields__), "none was forgotten"


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("response_format", "grammar"),
    [
        ({"type": "json_object"}, Grammar(json_schema={"type": "object"})),
        (
            {"type": "json_schema", "json_schema": {"name": "A", "schema": SCHEMA, "strict": True}},
            Grammar(json_schema=SCHEMA),
        ),
        ({"type": "json_schema", "json_schema": {"name": "A", "strict": None}}, Grammar(json_schema={})),
    ],
)
def test_a_response_format_is_a_grammar(response_format: dict[str, Any], grammar: Grammar) -> None:
    (start,) = chat(response_format=response_format)
    assert start.params.grammar == grammar


def test_there_are_no_two_grammars() -> None:
    error = refused(
        ChatBody,
        {
            "messages": MESSAGES,
            "response_format": {"type": "json_object"},
            "grammar": {"regex": "a"},
        },
    )
    assert error["param"] == "grammar"


def test_a_start_says_what_the_request_says() -> None:
    (start,) = chat(model="toy", priority=-1, timeout_ms=500, request_id="mine", grace_ms=7, on_cold="refuse")
    assert start.on_cold == "refuse"
    assert start.messages is not None
    assert (start.messages[0].role, start.messages[0].content) == ("user", "Hello")
    assert (start.model, start.priority, start.timeout_ms) == ("toy", -1, 500)
    assert (start.request_id, start.on_disconnect, start.grace_ms) == ("mine", "pause", 7)
    assert chat()[0].on_disconnect == "cancel", "nobody can come again for what has no name"
    assert chat(request_id="mine", on_disconnect="cancel")[0].on_disconnect == "cancel"


def test_tools_and_what_came_of_them_are_the_same_in_a_start() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "42"},
    ]
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": False}}
    ]
    (start,) = chat(messages=turns, tools=tools, tool_choice="none", parallel_tool_calls=False)
    assert start.messages is not None
    assert start.tools is not None
    assert start.messages[1].tool_calls == [msgspec.convert(call, MessageToolCall)]
    assert start.messages[1].content is None
    assert (start.messages[2].role, start.messages[2].tool_call_id) == ("tool", "x")
    assert start.tools[0].function.parameters == {"type": "object"}
    assert (start.tool_choice, start.parallel_tool_calls) == ("none", False)


def test_numbers_in_a_schema_are_read_by_what_is_quick_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a frame are."""
    read_so = list[str]()

    def quick(written: str) -> float:
        read_so.append(written)
        return quick_float(written)

    monkeypatch.setattr("realtime.http.openai.requests.quick_float", quick)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"enum": [1e300, 5e-324]}}}
    (start,) = chat(tools=[tool])
    assert start.tools is not None
    assert start.tools[0].function.parameters == {"enum": [1e300, 5e-324]}
    assert read_so == ["1e+300", "5e-324"]


def test_what_is_null_or_asks_for_nothing_is_left_out_of_account() -> None:
    nothing = {
        "user": "somebody",
        "metadata": {"a": "b"},
        "store": False,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "service_tier": "default",
        "prompt_cache_options": {"mode": "implicit"},
        "stop": None,
        "logprobs": None,
        "audio": None,
    }
    assert chat(**nothing) == chat()
    assert text(echo=False, suffix=None, best_of=1, user="x") == text()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{}]),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy"}),
        ("reasoning_effort", "low"),
        ("verbosity", "low"),
        ("web_search_options", {}),
        ("store", True),
        ("temprature", 0.5),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(name: str, value: Any) -> None:
    error = refused(ChatBody, {"messages": MESSAGES, name: value})
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert f"`{name}`" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": MESSAGES, "temperature": 3}, "temperature"),
        ({"messages": MESSAGES, "n": 0}, "n"),
        ({"messages": MESSAGES, "n": 129}, "n"),
        ({"messages": MESSAGES, "logprobs": 5}, "logprobs"),
        ({"messages": MESSAGES, "top_logprobs": 5}, "top_logprobs"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": MESSAGES, "max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"messages": MESSAGES, "stop": [""]}, "stop[0]"),
        ({"messages": MESSAGES, "stream_options": {"x": 1}}, "stream_options"),
        ({"messages": MESSAGES, "request_id": "x" * 129}, "request_id"),
        ({"messages": MESSAGES, "request_id": "x" * 128, "n": 2}, "request_id"),
        ({"messages": []}, "messages"),
        ({}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [*MESSAGES, *MESSAGES, {"who": "1"}]}, "messages[2].who"),
        ({"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools[0]"),
        ({"messages": MESSAGES, "tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_chat_names_its_field(body: dict[str, Any], param: str) -> None:
    assert refused(ChatBody, body)["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, -2]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"messages": MESSAGES}, "messages"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_a_mistake_in_a_completion_names_its_field(fields: dict[str, Any], param: str) -> None:
    assert refused(TextBody, {"prompt": "Once"} | fields)["param"] == param


@pytest.mark.parametrize(
    ("response_format", "sentence"),
    [
        (
            {"type": "xml"},
            '`response_format.type` of the request must be one of "text", "json_object", "json_schema".',
        ),
        ("json_object", "`response_format` of the request must be an object."),
    ],
)
def test_whoever_asks_for_no_known_format_is_told_all_that_are(response_format: Any, sentence: str) -> None:
    assert (
        refused(ChatBody, {"messages": MESSAGES, "response_format": response_format})["message"] == sentence
    )


@pytest.mark.parametrize("kind", [ChatBody, TextBody])
def test_of_every_field_it_is_said_what_would_be_right(kind: type[ChatBody | TextBody]) -> None:
    needed: dict[str, Any] = {"messages": MESSAGES} if kind is ChatBody else {"prompt": "Once"}
    for field in kind.__struct_fields__:
        error = refused(kind, needed | {field: {"no": "such"}})
        assert error["param"].startswith(field)
        assert "None" not in error["message"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON: it ends before it is whole."),
        (b"{", "not valid JSON: it ends before it is whole."),
        (b'{"model":"toy",}', "not valid JSON: the mistake is at byte 15."),
        (b'{"a":' * 100_000, "not valid JSON: it is nested too deeply."),
        (b'{"user":"\xff"}', "not UTF-8, from byte 9 on."),
        (b"[]", "must be one JSON object."),
        (b'"x"', "must be one JSON object."),
    ],
)
def test_what_is_no_request_is_refused_and_where_it_goes_wrong_is_said(body: bytes, says: str) -> None:
    error = refused(ChatBody, body)
    assert (error["code"], error["param"]) == ("invalid_frame", None)
    assert says in error["message"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (TextBody, b'{"prompt":"\xff"}'),
        (TextBody, b'{"prompt":["\xff"]}'),
        (TextBody, b'{"prompt":"a","echo":"\xff"}'),
        (TextBody, b'{"prompt":"a","echo":1e999}'),
        (TextBody, b'{"prompt":"a","model":"\xff"}'),
        (ChatBody, b'{"messages":[{"role":"user","content":"\xff"}]}'),
        (ChatBody, b'{"messages":[{"\xff":1}]}'),
        (ChatBody, b'{"messages":[{"role":"user","content":"a"}],"user":"\xff"}'),
    ],
)
def test_bytes_that_are_no_text_and_numbers_that_are_none_are_refused(
    kind: type[ChatBody | TextBody], body: bytes
) -> None:
    refused(kind, body)


WHOLE_BODIES: list[tuple[type[ChatBody | TextBody], dict[str, Any]]] = [
    (
        ChatBody,
        {
            "messages": [*MESSAGES, {"role": "user", "content": [{"type": "text", "text": "H\u00e9"}]}],
            "response_format": {"type": "text"},
            "metadata": {"a": [1e5, "\u00e9"]},
            "tools": [],
            "logit_bias": {"5": -1},
        },
    ),
    (TextBody, {"prompt": ["\u00e9", [1, 2]], "echo": False, "model": "x", "seed": 12}),
]
PIECES = st.binary(max_size=2) | st.sampled_from([b"1e999", b"\xff", b"\\ud800", b'"', b"[" * 2000, b"null"])


@settings(max_examples=400)
@given(st.sampled_from(WHOLE_BODIES), st.booleans(), st.data())
def test_whatever_is_done_to_a_body_it_is_taken_or_refused(
    whole: tuple[type[ChatBody | TextBody], dict[str, Any]], ascii_only: bool, data: st.DataObject
) -> None:
    kind, fields = whole
    body = json.dumps(fields, ensure_ascii=ascii_only).encode()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body = body[:at] + data.draw(PIECES) + body[at + data.draw(st.integers(0, 3)) :]
    with suppress(Refusal):
        made(kind, body)


def test_a_message_that_was_given_out_can_be_sent_back() -> None:
    said: dict[str, Any] = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
        "parsed": {"greeting": "Hi"},
    }
    (start,) = chat(messages=[{"role": "developer", "content": "Be kind"}, said])
    assert start.messages is not None
    assert [message.role for message in start.messages] == ["system", "assistant"]


def test_names_of_the_chat_and_their_defaults() -> None:
    assert chat(max_completion_tokens=5)[0].params.max_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=5)[0].params.max_tokens == 5
    assert chat()[0].params.max_tokens is UNSET
    assert text()[0][0].params.max_tokens == 16
    assert chat()[0].params.logprobs is UNSET
    assert chat(logprobs=True)[0].params.logprobs == 0
    assert chat(logprobs=True, top_logprobs=4)[0].params.logprobs == 4


@pytest.mark.parametrize(("length", "kept"), [(55, True), (256, True), (257, False), (16_000, False)])
def test_a_header_names_a_trace_in_as_many_characters_as_a_frame_may(length: int, kept: bool) -> None:
    body = read(TextBody, b'{"prompt":"Once"}')
    ((start,),) = starts(body, "made", "0" * length)
    assert start.traceparent == ("0" * length if kept else None)


def test_choices_have_names_and_seeds_of_their_own() -> None:
    choices = chat(n=3, seed=2**63 - 2)
    assert [start.request_id for start in choices] == ["made", "made:1", "made:2"]
    assert [start.params.seed for start in choices] == [2**63 - 2, 2**63 - 1, -(2**63)]
    assert [start.params.seed for start in chat(n=2)] == [UNSET, UNSET]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Once", ["Once"]),
        (["Once", "Twice"], ["Once", "Twice"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_a_prompt_is_one_or_many_texts_or_tokens(prompt: Any, prompts: list[Any]) -> None:
    made = text(prompt=prompt, n=2)
    assert [choices[0].prompt for choices in made] == prompts
    assert [[start.fork for start in choices] for choices in made] == [
        [None, Fork(request_id=choices[0].request_id, at=0)] for choices in made
    ]
    names = [start.request_id for choices in made for start in choices]
    assert names == ["made", *(f"made:{index}" for index in range(1, len(names)))]


@pytest.mark.parametrize(
    ("refusal", "status", "kind", "code", "param"),
    [
        (Refusal("context_too_long", "x"), 400, "invalid_request_error", "context_length_exceeded", None),
        (Refusal("invalid_params", "`params.n`"), 400, "invalid_request_error", "invalid_params", "n"),
        (FieldRefusal("a", "x", "unsupported"), 400, "invalid_request_error", "unsupported_parameter", "a"),
        (Refusal("unknown_model", "`x`"), 404, "invalid_request_error", "model_not_found", None),
        (Refusal("forbidden", "x"), 403, "permission_error", "forbidden", None),
        (Refusal("rate_limited", "", retry_after_ms=9), 429, "rate_limit_error", "rate_limit_exceeded", None),
        (Refusal("overloaded", "x"), 503, "server_error", "overloaded", None),
    ],
)  # fmt: skip
def test_errors_are_those_that_openais_clients_know(
    refusal: Refusal, status: int, kind: str, code: str, param: str | None
) -> None:
    error = error_object(refusal)["error"]
    assert (error["status"], error["type"], error["code"], error["param"]) == (status, kind, code, param)
    assert error.get("retry_after_ms") == refusal.retry_after_ms


def test_a_name_that_is_too_long_is_told_how_long_it_may_be() -> None:
    """It may be of a header, which a proxy has put there."""
    with pytest.raises(FieldRefusal, match=r"`X-Request-Id`.* has 130 characters; it may have 128") as caught:
        starts(read(ChatBody, msgspec.json.encode({"messages": MESSAGES, "n": 2})), "x" * 128)
    assert caught.value.param == "request_id"


def test_a_refusal_says_params_where_a_request_has_them() -> None:
    error = error_object(Refusal("invalid_params", "`params.logit_bias` names token 999."))["error"]
    assert (error["message"], error["param"]) == ("`logit_bias` names token 999.", "logit_bias")


@pytest.mark.parametrize(
    "asked",
    [{LONG: 1}, {"stream_options": {LONG: 1}}, {"messages": [{"role": "user", "content": "a", LONG: 1}]}],
)
def test_a_field_is_told_again_only_as_long_as_any_is(asked: dict[str, Any]) -> None:
    with pytest.raises(FieldRefusal) as caught:
        read(ChatBody, msgspec.json.encode({"messages": MESSAGES} | asked))
    assert len(msgspec.json.encode(error_object(caught.value))) < 1000
    assert "fffff" in caught.value.message


@pytest.mark.parametrize("value", ["1", "null"])
def test_a_body_of_many_fields_is_refused_without_a_look_at_them(value: str) -> None:
    most = ",".join(f'"k{n}":null' for n in range(MOST_FIELDS - 1))
    assert read(TextBody, b'{"prompt":"x",%s}' % most.encode()).prompts == ["x"]
    many = ",".join(f'"k{n}":{value}' for n in range(MOST_FIELDS))
    assert f"{MOST_FIELDS} fields" in refused(TextBody, b'{"prompt":"x",%s}' % many.encode())["message"]


@pytest.mark.parametrize("value", ["1", "null"])
def test_a_message_of_many_fields_is_refused_without_a_look_at_them(value: str) -> None:
    message = b'{"messages":[{"role":"user","content":"x",%s}]}'
    most = ",".join(f'"k{n}":null' for n in range(MOST_FIELDS - 2))
    assert read(ChatBody, message % most.encode()).messages[0].content == "x"
    many = ",".join(f'"k{n}":{value}' for n in range(MOST_FIELDS - 1))
    error = refused(ChatBody, message % many.encode())
    assert error["param"] == "messages[0]"
    assert error["message"] == f"`messages[0]` has more than {MOST_FIELDS} fields."


@pytest.mark.parametrize("whole", ["{%s}", '{"messages":[{%s}]}'], ids=["body", "message"])
def test_fields_are_read_to_the_first_that_is_too_many(whole: str) -> None:
    """A dictionary of a megabyte of them would take forty milliseconds."""
    few = ",".join(f'"{"k" * 250}{n}":null' for n in range(MOST_FIELDS))
    assert "than 256 fields" not in refused(ChatBody, (whole % few).encode())["message"]
    body = (whole % (few + "".join(f',"{n}":null' for n in range(90_000)))).encode()
    tracemalloc.start()
    try:
        assert f"than {MOST_FIELDS} fields" in refused(ChatBody, body)["message"]
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("kind", "name"), [(TextBody, "echo"), (ChatBody, "stop")])
def test_nonsense_is_refused_without_making_objects_of_it(kind: type[ChatBody | TextBody], name: str) -> None:
    asked = b'"messages":[{"role":"user","content":""}]' if kind is ChatBody else b'"prompt":""'
    body = b'{%s,"%s":[' % (asked, name.encode()) + b"[]," * 340_000 + b"[]]}"
    tracemalloc.start()
    try:
        assert refused(kind, body)["param"].startswith(name)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("kind", "name"), [(TextBody, "prompt"), (ChatBody, "messages")])
def test_a_list_of_too_many_is_read_to_the_first_that_is(kind: type[ChatBody | TextBody], name: str) -> None:
    body = b'{"%s":[' % name.encode() + b"{}," * 340_000 + b"{}]}"
    tracemalloc.start()
    try:
        error = refused(kind, body)
        assert (error["param"], error["message"][-7:]) == (name, " items.")
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


def test_as_many_prompts_and_messages_as_may_be_are_taken() -> None:
    assert len(text(prompt=["x"] * CHOICE_LIMIT)) == CHOICE_LIMIT
    (start,) = chat(messages=MESSAGES * MESSAGE_LIMIT)
    assert start.messages is not None
    assert len(start.messages) == MESSAGE_LIMIT


NAMED = b'{"type": "json_schema", "json_schema": {"schema": {"a": %b}}}'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (TextBody, b'{"prompt": %b}'),
        (ChatBody, b'{"messages": %b}'),
        (ChatBody, b'{"messages": [{"role": "user", "content": %b}]}'),
        (ChatBody, b'{"messages": [{"role": "user", "content": "a"}], "response_format": ' + NAMED + b"}"),
    ],
)
def test_however_deep_it_is_nested_it_is_refused_in_words(
    kind: type[ChatBody | TextBody], body: bytes
) -> None:
    for depth in range(sys.getrecursionlimit()):
        with suppress(Refusal):
            made(kind, body % (b"[" * depth + b"]" * depth))


@pytest.mark.parametrize("name", ["tools", "response_format", "grammar"])
def test_what_may_be_any_json_is_counted_before_it_is_made(name: str) -> None:
    """A megabyte of empty lists took 84 ms."""
    whole = {"messages": [{"role": "user", "content": "a"}], name: {"q": [[]] * 300_000}}
    body = msgspec.json.encode(whole)
    tracemalloc.start()
    try:
        with pytest.raises(FieldRefusal, match="values") as refused:
            read(ChatBody, body)
        assert refused.value.param == name
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


def test_what_may_be_any_json_is_counted_in_all_of_a_request_as_in_a_frame() -> None:
    def asked(floats: int) -> bytes:  # of which each counts as four
        tool: Any = {"function": {"name": "a", "parameters": {"a": [1.5] * floats}}}
        named: Any = {"schema": {"a": [1.5] * floats}}
        answer = {"type": "json_schema", "json_schema": named}
        return msgspec.json.encode({"messages": MESSAGES, "tools": [tool], "response_format": answer})

    read(ChatBody, asked(MOST_VALUES // 8 - 100))
    with pytest.raises(FieldRefusal, match=r"^The request has \d+ values"):
        read(ChatBody, asked(MOST_VALUES // 8 + 100))


def test_no_dictionary_is_made_of_many_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    biases = dict.fromkeys(map(str, range(2000)), 1)
    read_as = []
    decode = msgspec.json.decode

    def noted(data: Any, **how: Any) -> Any:
        read_as.append(how.get("type"))
        return decode(data, **how)

    monkeypatch.setattr(msgspec.json, "decode", noted)
    body = msgspec.json.encode({"messages": [{"role": "user", "content": "x"}], "logit_bias": biases})
    with pytest.raises(FieldRefusal, match="at most 1024 entries") as refusal:
        read(ChatBody, body)
    assert refusal.value.param == "logit_bias"
    assert ChatBody not in read_as
