"""The view of one answer: its text, reasoning and calls, what was done to it and at which token, its rate and
state.

Pure: it is told what happens and when, and knows neither the stream nor the terminal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from midstream.cli.sanitize import sanitize
from midstream.spans import Call, Thought
from midstream.stream_core import Chunk
from midstream.tool_tasks import ToolOutcome

Kind = Literal["text", "reasoning", "call", "note", "interjection"]
State = Literal["waiting", "reasoning", "writing", "paused", "ended"]
Segment = tuple[Kind, str]

RATE_WINDOW_S = 3.0  # the tokens of how many seconds make the tokens a second
TEMPERATURE_STEP, MAX_TEMPERATURE = 0.1, 2.0
MAX_SENTENCE_TOKENS = 40  # a sentence longer than this is taken back in parts
REWIND_TOKENS = 10
SHOWN_RESULT = 500  # characters of what a tool returns
REWOUND = "⟨taken back; it goes on from here⟩"  # where what was written cannot be
_SENTENCE_ENDS = (".", "!", "?", "。", "\uff01", "\uff1f", "…", "\n")


@dataclass(frozen=True)
class Mark:
    """Something that was done to the answer, and stands before token `index`."""

    index: int
    kind: Kind
    label: str


class AnswerView:
    def __init__(self) -> None:
        self.text = ""
        self.temperature: float | None = None  # what the person wants, or the server has chosen
        self.temperature_since: int | None = None  # the first token sampled with it, once that is known
        self.pause_reason: str | None = None
        self.disconnected = False  # while there is no connection to the server
        self.ended = False
        self.error: str | None = None  # why the last intent was refused
        self.marks: list[Mark] = []
        self.thoughts: list[Thought] = []
        self.calls: list[Call] = []
        self.outcomes: list[ToolOutcome] = []
        self._ends: list[tuple[int, int]] = []  # where chunks end, as an index and as a length of the text
        self._arrivals: deque[tuple[float, int]] = deque()

    # -- what happens ----------------------------------------------------------------------------------

    def add_chunk(self, chunk: Chunk, now: float) -> None:
        """The next piece of output. One that begins before the last one's end takes the place of it."""
        self.truncate(chunk.index)
        self.text += chunk.text
        self._reach(chunk.end)
        self._arrivals.append((now, chunk.count))
        while self._arrivals[0][0] < now - RATE_WINDOW_S:
            self._arrivals.popleft()

    def truncate(self, index: int) -> None:
        """Only the output before token `index` stands, and an interjection no further than there."""
        if index >= self.index:
            return
        self.text = self.text[: self._start(index)]
        del self._ends[bisect_left(self._ends, (index,)) :]
        self._reach(index)
        self.marks = [
            replace(mark, index=min(mark.index, index))
            for mark in self.marks
            if mark.kind != "interjection" or mark.index <= index
        ]
        self._arrivals.clear()

    def replace(self, index: int, text: str) -> None:
        """All that there is, where what happened in between is not known."""
        known = self.index if index >= self.index and text.startswith(self.text) else 0
        self.truncate(known)
        self.text += text[len(self.text) :]
        self._reach(index)

    def _reach(self, index: int) -> None:
        """The text that is here is that of so many tokens."""
        if index > self.index:
            self._ends.append((index, len(self.text)))

    def add_mark(self, index: int, kind: Kind, label: str) -> None:
        self.marks.append(Mark(index, kind, label))

    def mark_temperature(self, index: int, temperature: float) -> None:
        """Token `index` is the first at this temperature."""
        self.temperature_since = index
        self.marks = [mark for mark in self.marks if (mark.kind, mark.index) != ("note", index)]
        self.add_mark(index, "note", f"⟨{temperature:.1f}⟩")

    def set_paused(self, reason: str | None) -> None:
        if reason is not None:
            self._arrivals.clear()
        self.pause_reason = reason

    def change_temperature(self, by: float) -> float:
        """The temperature that the person wants now."""
        wanted = round((1.0 if self.temperature is None else self.temperature) + by, 1)
        self.temperature = min(max(wanted, 0.0), MAX_TEMPERATURE)
        self.temperature_since = None
        return self.temperature

    # -- what is shown ---------------------------------------------------------------------------------

    @property
    def index(self) -> int:
        """How many tokens are shown: the index that a person who has read it all steers from."""
        return self._ends[-1][0] if self._ends else 0

    @property
    def state(self) -> State:
        if self.ended:
            return "ended"
        if self.pause_reason is not None:
            return "paused"
        if not self._ends:
            return "waiting"
        return "reasoning" if self.thoughts and self.thoughts[-1].end >= self.index else "writing"

    def rate(self, now: float) -> float | None:
        """Tokens a second, of the last few seconds."""
        recent = [(at, count) for at, count in self._arrivals if at >= now - RATE_WINDOW_S]
        if len(recent) < 2 or recent[-1][0] == recent[0][0]:
            return None
        return sum(count for _, count in recent[1:]) / (recent[-1][0] - recent[0][0])

    def rewind_target(self) -> int:
        """Where the last sentence begins, if that is near; else a few tokens back."""
        for index in range(self.index - 2, max(self.index - MAX_SENTENCE_TOKENS, 0) - 1, -1):
            before = self.text[: self._start(index)].rstrip(" ")
            if index == 0 or before.endswith(_SENTENCE_ENDS):
                return index
        return max(self.index - REWIND_TOKENS, 0)

    def segments(self) -> list[Segment]:
        """The text in pieces that are each shown in one way, with the marks where they stand."""
        pieces: list[Segment] = []
        shown = 0
        for mark in sorted([*self._spans(), *self.marks], key=lambda mark: mark.index):
            if mark.index > self.index:
                break  # its token has not come yet
            at = self._start(mark.index)
            label = f"\n\n▸ {mark.label}\n\n" if mark.kind == "interjection" else mark.label
            if mark.kind == "call" and at > shown and self.text[at - 1] != "\n":
                label = f"\n{label}"  # on a line of its own
            pieces += [("text", sanitize(self.text[shown:at])), (mark.kind, sanitize(label))]
            shown = at
        pieces.append(("text", sanitize(self.text[shown:])))
        return [piece for piece in pieces if piece[1]]

    def _spans(self) -> Iterator[Mark]:
        """What stands beside the text, each behind what it is."""
        for thought in self.thoughts:
            over = thought.end < self.index or self.ended
            yield Mark(thought.index, "reasoning", thought.text.rstrip() + "\n\n" if over else thought.text)
        for call in self.calls:
            yield Mark(call.index, "call", f"⚙ {call.name} {call.arguments}" + ("\n" if call.whole else ""))
        for outcome in self.outcomes:
            if outcome.index is not None:
                yield Mark(outcome.index, "call", f"⚙ {outcome.call.name} → {_shown(outcome)}\n")

    def _start(self, index: int) -> int:
        """How much text stands before the token at `index`: all of a chunk's with its first."""
        if not (index and self._ends):
            return 0
        return self._ends[min(bisect_left(self._ends, (index,)), len(self._ends) - 1)][1]


def _shown(outcome: ToolOutcome) -> str:
    said = f"error: {outcome.error}" if outcome.content is None else outcome.content
    said = " ".join(said.split())
    return said[:SHOWN_RESULT] + ("…" if len(said) > SHOWN_RESULT else "")


def status_line(view: AnswerView, now: float) -> str:
    """The line below the answer."""
    reason = sanitize(view.pause_reason or "")
    words = {
        "waiting": "… reading the prompt",
        "reasoning": "● reasoning",
        "writing": "● writing",
        "paused": "‖ paused" if reason == "client" else f"‖ paused ({reason})",
        "ended": "■ ended",
    }
    if view.error is not None:
        return f"! {view.error}"
    disconnected = view.disconnected and not view.ended
    parts = ["↻ connection lost, coming back" if disconnected else words[view.state], f"{view.index} tokens"]
    rate = view.rate(now)
    if not disconnected and view.state in ("reasoning", "writing") and rate is not None:
        parts.append(f"{rate:.1f} tok/s")
    if view.temperature is not None:
        index = view.temperature_since
        since = "" if index == 0 else " …" if index is None else f" since token {index}"
        parts.append(f"temperature {view.temperature:.1f}{since}")
    return "  ".join(parts)
