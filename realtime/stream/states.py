"""The state machine of one stream, as a table: its states, which may follow which, and the picture of it.

A stream's state is derived from its numbers (`Stream.state`), and whenever it changes the change is looked up
here: one that the table does not have raises. `docs/protocol.md` shows the picture.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["queued", "running", "stalled", "paused", "finished"]


class Transition(NamedTuple):
    before: State
    after: State
    why: str


TRANSITIONS = (
    Transition("queued", "running", "its turn has come"),
    Transition("queued", "stalled", "its prompt is ready, and no credit is left"),
    Transition("queued", "paused", "pause"),
    Transition("queued", "finished", "cancel, timeout"),
    Transition("running", "stalled", "credit is used up"),
    Transition("running", "paused", "pause, a guard, no memory, nobody listens, no engine"),
    Transition("running", "finished", "its own end, cancel, timeout"),
    Transition("stalled", "running", "credit"),
    Transition("stalled", "paused", "pause, nobody listens"),
    Transition("stalled", "finished", "its own end is delivered, cancel, timeout"),
    Transition("paused", "running", "resume, memory, somebody listens, an engine"),
    Transition("paused", "stalled", "the same, and no credit is left"),
    Transition("paused", "queued", "resume before its turn has come"),
    Transition("paused", "finished", "cancel, timeout"),
)
_LEGAL = {(transition.before, transition.after) for transition in TRANSITIONS}


class IllegalTransition(AssertionError):
    """A stream's numbers contradict the table: a bug of ours, and never a peer's mistake."""


def check_transition(before: State, after: State) -> None:
    if (before, after) not in _LEGAL:
        raise IllegalTransition(f"a stream that is {before} cannot become {after}")


def mermaid() -> str:
    """The table as Mermaid draws it."""
    lines = [f"    {one.before} --> {one.after}: {one.why}" for one in TRANSITIONS]
    return "\n".join(["stateDiagram-v2", "    [*] --> queued: start", *lines, "    finished --> [*]"])
