"""The states of a stream's life, and which may follow which: a table, and the picture that documents it.

A stream has no state of its own: it derives it from its numbers (`Stream.state`). This table says what may be
seen from outside, one state after the other; tests hold the streams to it, and `docs/protocol.md` shows it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["queued", "running", "stalled", "paused", "finished"]


class Passage(NamedTuple):
    before: State
    after: State
    why: str


LIFE = (
    Passage("queued", "running", "its turn has come"),
    Passage("queued", "stalled", "its prompt is ready, and no credit is left"),
    Passage("queued", "paused", "pause"),
    Passage("queued", "finished", "cancel, timeout"),
    Passage("running", "stalled", "credit is used up"),
    Passage("running", "paused", "pause, no memory, nobody listens, no engine"),
    Passage("running", "finished", "its own end, cancel, timeout"),
    Passage("stalled", "running", "credit"),
    Passage("stalled", "paused", "pause, nobody listens"),
    Passage("stalled", "finished", "its own end is delivered, cancel, timeout"),
    Passage("paused", "running", "resume, memory, somebody listens, an engine"),
    Passage("paused", "stalled", "the same, and no credit is left"),
    Passage("paused", "queued", "resume before its turn has come"),
    Passage("paused", "finished", "cancel, timeout"),
)


def picture() -> str:
    """As Mermaid draws it."""
    lines = [f"    {passage.before} --> {passage.after}: {passage.why}" for passage in LIFE]
    return "\n".join(["stateDiagram-v2", "    [*] --> queued: start", *lines, "    finished --> [*]"])
