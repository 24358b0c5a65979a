"""Whether one stream is paused, and by whom: its client, a guard, its calls, that nobody listens, or what it
waits for. Who may let it go on follows. Pure."""

from __future__ import annotations

from midstream.protocol import PauseReason

HOLDING: tuple[PauseReason, ...] = ("client", "detached", "tool_call", "guard")  # does not pass by itself


class Pausing:
    def __init__(self) -> None:
        self.reason: PauseReason | None = None  # in force
        self.asked = False  # what the client asked for last: pause, or resume
        self.detached = False  # by us, until somebody attaches
        self.released = False  # whether what was computed was given up, and is to be computed again

    @property
    def holds(self) -> bool:
        """Until somebody has it go on."""
        return self.reason in HOLDING

    @property
    def waits_for_results(self) -> bool:
        return self.reason == "tool_call"

    @property
    def ends_with_results(self) -> bool:
        """They are all that it waits for."""
        return self.reason == "tool_call" and not self.asked

    @property
    def outlasts_listeners(self) -> bool:
        """Whether nobody's coming ends it."""
        return self.reason in ("tool_call", "guard")

    @property
    def may_be_detached(self) -> bool:
        """Whether it would go on where nobody listens."""
        return not (self.asked or self.detached or self.outlasts_listeners)

    def ask(self) -> None:
        self.asked, self.detached = True, False

    def ask_to_go_on(self) -> None:
        self.asked = self.detached = False
