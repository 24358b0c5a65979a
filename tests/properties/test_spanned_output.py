"""An output with calls, reasoning and turns of others, wherever it goes back to and whatever forks of it, is
what one is that has read only what stands.

`MIDSTREAM_EXAMPLES` set to any number tries two thousand.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any, NamedTuple

from engine import toy_model
from midstream.protocol import Function, Tool
from realtime.stream.accumulated_output import Output
from realtime.stream.spanned_text import SpannedText
from realtime.text.tokenizer import Tokenizer
from realtime.tools.offered import argument_kinds

SEEDS = range(2000 if "MIDSTREAM_EXAMPLES" in os.environ else 80)
TOKENIZER = Tokenizer(
    json.loads((toy_model.FOLDER / "tokenizer.json").read_text()),
    "{% if tools %}<tool_call>{% endif %}{% for m in messages %}<think>{{ m.content }}{% endfor %}",
)
KINDS = argument_kinds([Tool(function=Function(name="find"))])
FIND = '<tool_call>{"name": "find", "arguments": {"q": "é</tool_call>"}}</tool_call>'
LONG = FIND.replace("é", "x" * 300)  # has more than one turn of its own, and copies of its reader
PIECES = [FIND, FIND, LONG, FIND[:-30], FIND.replace(":", "!"), "<think>Hm, é</think>", " So ", "日<", "\n"]


class Injection(NamedTuple):
    """`answers`: the calls whose results it has, by their numbers."""

    place: int  # the output token behind it
    tokens: list[int]
    new_turn: bool
    answers: list[int]


class Steered:
    """An output, and what stands of all that it was told."""

    def __init__(self) -> None:
        self.output = empty()
        self.tokens: list[int] = []
        self.injections: list[Injection] = []

    def write(self, tokens: list[int]) -> None:
        self.tokens += tokens
        for token in tokens:
            self.output.add(token)

    def inject(self, tokens: list[int], answers: list[int], *, new_turn: bool) -> None:
        self.injections.append(Injection(len(self.tokens), tokens, new_turn, answers))
        put_in(self.output, self.injections[-1])

    def cut(self, index: int) -> None:
        self.output.cut(index, ())
        del self.tokens[index:]
        self.injections = [one for one in self.injections if one.place <= index]

    def cut_behind(self, behind: int) -> None:
        index, count = self.output.place(behind)
        self.output.cut(index, (), count)
        del self.tokens[index:]
        stand = list[Injection]()
        for one in self.injections:
            if count > 0:
                stand.append(one._replace(tokens=one.tokens[:count]))
            count -= len(one.tokens)
        self.injections = stand

    def forked(self, index: int) -> Steered:
        again = Steered()
        again.output = self.output.forked("a", index, (), 0)
        again.tokens = self.tokens[:index]
        again.injections = [one for one in self.injections if one.place <= index]
        return again

    def read_anew(self) -> Output:
        anew, at = empty(), 0
        for one in [*self.injections, None]:
            end = len(self.tokens) if one is None else one.place
            for token in self.tokens[at:end]:
                anew.add(token)
            at = end
            if one is not None:
                put_in(anew, one)
        return anew


def empty() -> Output:
    return Output(TOKENIZER, (), 0, SpannedText(TOKENIZER, "a", KINDS, [1], (), 0, one_call=True))


def read(output: Output) -> SpannedText:
    """All of it."""
    assert output.spans is not None
    while output.spans.reading:
        output.spans.read_on()
    return output.spans


def put_in(output: Output, one: Injection) -> None:
    calls = read(output).calls if one.answers else []
    answers = [calls[number].call_id for number in one.answers]
    output.inject(one.tokens, new_turn=one.new_turn, answers=answers)


def what_is_known(output: Output) -> dict[str, Any]:
    spans = read(output)
    flushed, _ = output.flushed(())
    calls = [
        (call.index, call.name, "".join(call.arguments), call.end, call.answered) for call in spans.calls
    ]
    return {
        "context": output.context(),
        "content": flushed.content(),
        "reasoning": output.reasoning(),
        "reasoning_tokens": spans.reasoning_tokens,
        "lengths": spans.lengths,
        "calls": calls,
        "turn": (len(spans.turn_calls), spans.turn_begin, spans.turn_texts(output.tokens)[1]),
        "called": (spans.called, spans.stopped),
        "injected": (output.injected(), spans.injected_read),
    }


def test_wherever_it_goes_back_to_it_is_what_one_is_that_has_read_what_stands() -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        streams = [Steered()]
        for _ in range(chance.randint(4, 24)):
            one = chance.choice(streams)
            piece = list(chance.choice(PIECES).encode())
            tokens = piece[: chance.choice([len(piece), len(piece), chance.randint(1, len(piece))])]
            back = chance.choice([0, 1, 5, 40, 1000])
            match chance.choice(["write", "write", "inject", "turn", "cut", "cut behind", "fork"]):
                case "write":
                    one.write(tokens)
                case "inject":
                    one.inject(tokens, [], new_turn=False)
                case "turn":
                    known = enumerate(read(one.output).calls)
                    waiting = [at for at, call in known if call.end is not None and call.answered is None]
                    one.inject([33], chance.sample(waiting, chance.randint(0, len(waiting))), new_turn=True)
                case "cut":
                    one.cut(max(0, len(one.tokens) - back))
                case "cut behind":
                    one.cut_behind(max(0, len(one.output.context()) - back))
                case "fork":
                    streams.append(one.forked(max(0, len(one.tokens) - back)))
        for one in streams:
            assert what_is_known(one.output) == what_is_known(one.read_anew()), seed
