"""The guards of one stream: what they find, and what is to be done about it.

They are told what comes with each token, in order, and judge it before anybody else hears of it. They know
texts, indices and the events beside tokens, and no engine: how a verdict is carried out is others' business.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property

from msgspec import UNSET, Struct
from msgspec.structs import asdict

from midstream.protocol import Beside, Guard, GuardAction
from realtime.guards.acts import Acts
from realtime.guards.pattern import MOST_BACK
from realtime.guards.reading import Find, GuardReading, Text, Written
from realtime.guards.watches import patterns_of

GUARD_BYTES = 600  # what one weighs
DETAIL = 200  # characters of what was found that are told


class Verdict(Struct, frozen=True):
    """A guard acts: `index` is where the output goes back to, where it pauses, or the token it was found
    with. `token` is not to come again there. `times`: how often it has come to that."""

    guard: Guard
    do: GuardAction
    index: int
    detail: str
    times: int | None = None
    token: int | None = None


class _Said:
    """The texts of what is written, each put together once however many guards have found something in it."""

    def __init__(self, written: Written) -> None:
        self.written = written
        self._arguments = dict[int, str]()

    def arguments(self, call: int) -> str:
        if call not in self._arguments:
            self._arguments[call] = "".join(self.written.calls[call].arguments)
        return self._arguments[call]

    @cached_property
    def content(self) -> str:
        return self.written.content()

    @cached_property
    def reasoning(self) -> str:
        return self.written.reasoning()


class Guards:
    """`written`: what stands where they begin. It is not judged, but a call that is open is read."""

    def __init__(self, asked: Sequence[Guard], written: Written) -> None:
        self.asked = list(asked)
        self._patterns = patterns_of(asked)  # of watches, which are made anew where they begin again
        self._patterns_bytes = sum(pattern.bytes for pattern in self._patterns)
        self._reading = GuardReading(self.asked, written)

    @property
    def bytes(self) -> int:
        return GUARD_BYTES * len(self.asked) + self._patterns_bytes + self._reading.bytes

    @property
    def reading(self) -> bool:
        """Whether they have not read all of what stands, or was foreseen."""
        return self._reading.unread

    def read_on(self) -> None:
        self._reading.read_on()

    @property
    def at_once(self) -> int:
        """How many characters may come with a token, or the end, without being foreseen."""
        return self._reading.at_once

    def foresee(self, texts: Sequence[Text]) -> None:
        """What is judged next: where it is long they read it before, a part at a time, as what stands."""
        self._reading.foresee(texts)

    def read(self, content: str, beside: Sequence[Beside]) -> None:
        """What is said without a token, and is not judged."""
        self._reading.add(content, beside)

    def judge(
        self, content: str, beside: Sequence[Beside], written: Written, seconds: float, acts: Acts
    ) -> list[Verdict]:
        """Of one token more, the last that is written: what guards have to say, in their order. What is done
        is what the first one does that does not tell alone; it comes last."""
        return self._verdicts(self._reading.read_token(content, beside), written, seconds, acts)

    def judge_end(
        self, content: str, beside: Sequence[Beside], written: Written, acts: Acts
    ) -> list[Verdict]:
        """The output ends, and says this besides. What is found is its last token's. They go back behind it,
        or are no more."""
        finds = self._reading.read(content, beside)
        for at, find in self._reading.finds_at_end():
            finds.setdefault(at, find)
        return self._verdicts(finds, written, 0.0, acts)

    def cut(self, written: Written) -> None:
        """Only that stands. Where that is less than stood where they began, they begin there."""
        self._reading.cut(written)

    def forked(self, written: Written) -> Guards:
        """Those of another that goes on behind what is written; these stay as they are."""
        again = copy.copy(self)
        again._reading = self._reading.forked(written)
        return again

    def _verdicts(
        self, finds: dict[int, Find], written: Written, seconds: float, acts: Acts
    ) -> list[Verdict]:
        verdicts: list[Verdict] = []
        said = _Said(written)
        for at, guard in enumerate(self.asked):
            verdict = self._of_budget(guard, written, seconds, acts) if guard.budget else None
            if at in finds:  # what all of them tell of one token is no more than one may
                verdict = self._of_find(guard, finds[at], said, acts, DETAIL // len(finds))
            if verdict is not None:
                verdicts.append(verdict)
                if verdict.do != "tell":
                    break
        return verdicts

    def _of_find(self, guard: Guard, find: Find, said: _Said, acts: Acts, most: int) -> Verdict | None:
        """`most`: characters that are looked back through to tell of it."""
        written = said.written
        do, last = action(guard, acts), len(written) - 1
        if do == "pause" and acts.passed(guard, last):
            return None
        goes_back = do in ("rewind", "finish")
        index, detail = self._where(find, said, MOST_BACK if goes_back else most)
        if not detail and isinstance(guard.path, str):  # which no value stands at
            detail = guard.path
        return _verdict(guard, do, min(index, last) if goes_back else last, detail, written, acts)

    def _where(self, find: Find, said: _Said, most: int) -> tuple[int, str]:
        """The token with which that begins which was found, and what it says."""
        hit, written = find.hit, said.written
        if find.kind == "call":
            call = written.calls[find.call]
            return written.token_that_spells(call.name, call.index), call.name
        if find.kind == "content":
            text = said.content
            begin = hit.begins(text, most)
            token = written.token_with(begin)
        elif find.kind == "reasoning":
            text = said.reasoning
            begin = hit.begins(text, most)
            token = self._reading.token_of_reasoning(begin)
        else:
            text = said.arguments(find.call)
            begin = hit.begins(text, most)
            token = self._reading.token_of_arguments(find.base + begin)
        return token, text[begin : hit.end]

    def _of_budget(self, guard: Guard, written: Written, seconds: float, acts: Acts) -> Verdict | None:
        assert guard.budget
        budget, last = guard.budget, len(written) - 1
        used = {
            "tokens": last,
            "calls": len(written.calls) - 1,
            "reasoning_tokens": self._reading.counts.reasoning_tokens - 1,
            "seconds": seconds,
        }
        limits = asdict(budget).items()
        spent = next((name for name, most in limits if most is not UNSET and used[name] >= most), None)
        do = action(guard, acts)
        if spent is None or (do != "rewind" and acts.passed(guard)):
            return None
        index = last
        if spent == "calls" and isinstance(budget.calls, int) and do in ("rewind", "finish"):
            index = min(written.calls[budget.calls].index, last)  # one that was put in may stand behind it
        return _verdict(guard, do, index, spent, written, acts)


def _verdict(guard: Guard, do: GuardAction, index: int, detail: str, written: Written, acts: Acts) -> Verdict:
    if do != "rewind":
        return Verdict(guard, do, index, detail[:DETAIL])
    return Verdict(guard, do, index, detail[:DETAIL], acts.times(guard.name) + 1, written.tokens[index])


def action(guard: Guard, acts: Acts) -> GuardAction:
    """What it does now."""
    return guard.then if guard.do == "rewind" and acts.times(guard.name) >= guard.times else guard.do
