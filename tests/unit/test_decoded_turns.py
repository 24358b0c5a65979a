"""A conversation that comes again has the tokens that were decoded, however its client spells them; and a
client that says something else has what it says."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from msgspec.structs import replace

from midstream import protocol
from midstream.protocol import CalledFunction, Function, Message, MessageToolCall, Tool
from realtime.hub import decoded_turns
from realtime.hub.decoded_turns import KEPT_S, DecodedTurns
from realtime.hub.fair_cache import FairCache
from realtime.text import tokenizer as tokenizer_module
from realtime.text.chat_template import NotBriefError, TextError
from realtime.text.decoded_turn import DecodedCall, DecodedTurn, known_turns
from realtime.text.tokenizer import Tokenizer
from tests.fakes.small_tokenizers import ROLES, byte_level_json

# As Qwen 3 has it: what was reasoned before the last question is left out, and spaces are trimmed.
CHATML = """\
{%- set last = namespace(query=0) -%}
{%- for m in messages if m.role == 'user' %}{% set last.query = loop.index0 %}{% endfor -%}
{%- for tool in tools or [] %}<tools>{{ tool | tojson }}</tools>{% endfor -%}
{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\\n' -}}
{%- if m.role == 'assistant' and loop.index0 > last.query %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif -%}
{{ m.content | trim -}}
{%- for call in m.tool_calls or [] -%}
{{ '\\n<tool_call>\\n' }}{"name": "{{ call.function.name }}", "arguments": {{- ' ' -}}
{{ call.function.arguments | tojson }}}
{{- '\\n</tool_call>' -}}
{%- endfor -%}
{{ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif -%}"""
# Calls instead of content, and results behind calls alone.
STRICT = """\
{%- for tool in tools or [] %}<tool_call>{{ tool | tojson }}{% endfor -%}
{%- for m in messages -%}
{%- if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls -%}
{{ raise_exception('a result of no call') }}
{%- endif -%}
{{ '<|im_start|>' + m.role + '\\n' -}}
{%- if m.tool_calls %}[{% for call in m.tool_calls %}{{ call.function.name }}{% endfor %}]
{%- else %}{{ m.content }}{% endif -%}
{{ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"""
TOOLS = [Tool(function=Function(name="find"))]
ASKED = [Message(role="user", content="Where is <|im_end|>?")]


def tokenizer(template: str = CHATML) -> Tokenizer:
    return Tokenizer(json.loads(byte_level_json()), template, ROLES)


def decoded(of: Tokenizer, call_id: str = "abcdefghi", q: str = "x") -> DecodedTurn:
    call = DecodedCall(call_id, "find", f'{{"q":"{q}","n":1.0}}')
    spelt = f'<tool_call>\n{{"name": "find", "arguments": {call.arguments}}}\n</tool_call>'
    tokens = array("i", of.encode(f"I see.\n</think>\n\nLet me  see.{spelt}", special=False))
    return DecodedTurn(tokens, "Let me  see.", "I see.", (call,))


def called(arguments: str, name: str = "find", call_id: str = "abcdefghi") -> MessageToolCall:
    return MessageToolCall(id=call_id, function=CalledFunction(name=name, arguments=arguments))


def told(turn: DecodedTurn, **changes: Any) -> Message:
    """As another client says it: spaces, the order of keys, no reasoning."""
    (call,) = turn.calls
    arguments = json.dumps(dict(reversed(json.loads(call.arguments).items())), indent=1)
    calls = [called(arguments, call.name, call.call_id)]
    return replace(Message(role="assistant", content=" Let me see. ", tool_calls=calls), **changes)


def result(call_id: str = "abcdefghi") -> Message:
    return Message(role="tool", content="42", tool_call_id=call_id)


def test_what_was_decoded_stands_where_it_stood() -> None:
    of = tokenizer()
    turn = decoded(of)
    first = of.encode_chat(ASKED, TOOLS)
    again = of.encode_chat([*ASKED, told(turn), result()], TOOLS, turns={"abcdefghi": turn})
    assert again[: len(first) + len(turn.tokens)] == [*first, *turn.tokens]
    behind = of.encode_chat([*ASKED, told(turn), result()], TOOLS)
    rest = again[len(first) + len(turn.tokens) :]
    assert behind[-len(rest) :] == rest
    assert rest[0] in of.special, "which ends the turn"


def test_turn_by_turn_each_prompt_begins_with_the_one_before() -> None:
    of, turns = tokenizer(), dict[str, DecodedTurn]()
    messages, before = list(ASKED), list[int]()
    for number in range(5):
        prompt = of.encode_chat(messages, TOOLS, turns=turns)
        assert prompt[: len(before)] == before
        turn = decoded(of, f"abcdefgh{number}", q=f"x{number}")
        turns[turn.calls[0].call_id] = turn
        before = [*prompt, *turn.tokens]
        messages += [told(turn), result(turn.calls[0].call_id)]
        if number == 2:
            messages.append(Message(role="user", content="And there?"))


@pytest.mark.parametrize(
    "changes",
    [
        {"content": "Let me look."},
        {"reasoning_content": "I do not see."},
        {"role": "user"},
        {"tool_calls": [called('{"q":"x"}')]},
        {"tool_calls": [called('{"q":"x","n":1.0}', "stop")]},
        {"tool_calls": [called("nonsense")]},
    ],
)
def test_what_says_something_else_is_told_as_it_is(changes: dict[str, Any]) -> None:
    of = tokenizer()
    turn = decoded(of)
    messages = [*ASKED, told(turn, **changes), result()]
    assert of.encode_chat(messages, TOOLS, turns={"abcdefghi": turn}) == of.encode_chat(messages, TOOLS)


def test_where_that_is_too_much_work_all_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "MOST_RENDERED", 0)
    of = tokenizer()
    turn = decoded(of)
    messages = [*ASKED, told(turn), result()]
    assert of.encode_chat(messages, TOOLS, turns={"abcdefghi": turn}) == of.encode_chat(messages, TOOLS)


def test_a_turn_that_many_messages_name_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be long."""
    looked = list[str]()
    is_told_by = DecodedTurn.is_told_by

    def counted(turn: DecodedTurn, message: Message) -> bool:
        looked.append(turn.calls[0].call_id)
        return is_told_by(turn, message)

    monkeypatch.setattr(DecodedTurn, "is_told_by", counted)
    turns = {name: decoded(tokenizer(), name) for name in ("abcdefghi", "bcdefghij")}
    messages = [told(turn) for _ in range(50) for turn in turns.values()]
    assert [at for at, _ in known_turns(messages, turns)] == [0, 1]
    assert sorted(looked) == sorted(turns)


def test_where_they_are_long_it_is_not_brief() -> None:
    of = tokenizer()
    short, long = decoded(of), decoded(of, q="x" * 20_000)
    for turn in (short, long):
        messages, turns = [*ASKED, told(turn), result()], {"abcdefghi": turn}
        if turn is long:
            with pytest.raises(NotBriefError):
                of.encode_chat(messages, TOOLS, turns=turns, brief=True)
        assert len(of.encode_chat(messages, TOOLS, turns=turns, brief=turn is short)) > len(turn.tokens)


def test_where_a_template_shows_calls_and_no_content_too() -> None:
    of = tokenizer(STRICT)
    turn = decoded(of)
    again = of.encode_chat([*ASKED, told(turn), result()], TOOLS, turns={"abcdefghi": turn})
    first = of.encode_chat(ASKED, TOOLS)
    assert again[: len(first) + len(turn.tokens)] == [*first, *turn.tokens]


HIDING = STRICT.replace("[{% for call in m.tool_calls %}{{ call.function.name }}{% endfor %}]", "called")


@pytest.mark.parametrize("template", [HIDING, CHATML.replace("<|im_end|>", "END")])
def test_a_template_that_shows_no_mark_or_no_end_has_its_own_way(template: str) -> None:
    of = tokenizer(template)
    turn = decoded(of)
    messages = [*ASKED, told(turn), result()]
    assert of.encode_chat(messages, TOOLS, turns={"abcdefghi": turn}) == of.encode_chat(messages, TOOLS)


def test_a_result_goes_in_where_a_template_wants_its_call_before_it() -> None:
    of = tokenizer(STRICT)
    turns = of.encode_turns([replace(result(), name="find")])
    text = b"".join(of.token_bytes(token) for token in turns).decode()
    assert text == "\ntool\n42\nassistant\n"
    assert turns[0] in of.special
    with pytest.raises(TextError, match="refuses"):
        tokenizer(STRICT.replace("and not messages[loop.index0 - 1].tool_calls", "")).encode_turns([result()])


def test_they_are_kept_by_tenant_and_model_and_for_a_while() -> None:
    kept, turn = DecodedTurns(), decoded(tokenizer())
    kept.add("alice", "toy", turn, 0.0)
    frame = protocol.Start(request_id="a", messages=[*ASKED, told(turn)])
    assert kept.told_in("alice", "toy", frame, 1.0) == {"abcdefghi": turn}
    assert kept.told_in("bob", "toy", frame, 1.0) == {}
    assert kept.told_in("alice", "other", frame, 1.0) == {}, "its tokens are others"
    assert kept.told_in("alice", "toy", protocol.Start(request_id="a", messages=ASKED), 1.0) == {}
    assert kept.told_in("alice", "toy", frame, KEPT_S) == {}


def test_of_very_many_that_are_old_a_few_are_forgotten_at_once_and_none_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoded_turns, "OLD_AT_ONCE", 2)
    kept, of, forgotten = DecodedTurns(), tokenizer(), list[object]()
    turns = [decoded(of, f"abcdefg{number:02}") for number in range(5)]
    for turn in turns:
        kept.add("alice", "toy", turn, 0.0)
    pop = FairCache.pop

    def count(cache: FairCache[Any, Any, Any], key: object) -> None:
        forgotten.append(key)
        pop(cache, key)

    monkeypatch.setattr(FairCache, "pop", count)
    frame = protocol.Start(request_id="a", messages=[*ASKED, *map(told, turns)])
    assert kept.told_in("alice", "toy", frame, KEPT_S) == {}
    assert len(forgotten) == 2


def test_and_in_so_many_bytes() -> None:
    of = tokenizer()
    turns = [decoded(of, f"abcdefg{number:02}") for number in range(20)]
    kept = DecodedTurns(byte_limit=5 * turns[0].bytes)
    for turn in turns:
        kept.add("alice", "toy", turn, 0.0)
    frame = protocol.Start(request_id="a", messages=[*ASKED, *map(told, turns)])
    assert list(kept.told_in("alice", "toy", frame, 1.0).values()) == turns[-5:]
