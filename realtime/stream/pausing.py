"""Whether one stream is paused, and by whom: its client, a guard, its calls, that nobody listens, or what it
waits for. Who may let it go on follows, and what its listener is told of that. It knows no engine but by its
fingerprint."""

from __future__ import annotations

from engine import api
from midstream import protocol
from midstream.protocol import PauseReason
from realtime.stream.accumulated_output import Output
from realtime.stream.answers import answer
from realtime.stream.guarding import Guarding
from realtime.stream.outbox import Outbox
from realtime.stream.pending_commands import PendingCommand, PendingCommands
from realtime.stream.stopwatch import Stopwatch
from realtime.stream.tool_loop import ToolLoop

HOLDING: tuple[PauseReason, ...] = ("client", "detached", "tool_call", "guard")  # does not pass by itself


class Pausing:
    def __init__(
        self,
        number: int,
        outbox: Outbox,
        output: Output,
        commands: PendingCommands,
        tools: ToolLoop,
        guarding: Guarding,
        stopwatch: Stopwatch,
        fingerprint: str | None,
    ) -> None:
        self.reason: PauseReason | None = None  # in force
        self.asked = False  # what the client asked for last: pause, or resume
        self.detached = False  # by us, until somebody attaches
        self.released = False  # whether what was computed was given up, and is to be computed again
        self.fingerprint = fingerprint  # of the engine that computes it; None before the first
        self.told_fingerprint = fingerprint
        self._number = number
        self._outbox = outbox
        self._output = output
        self._commands = commands
        self._tools = tools
        self._guarding = guarding
        self._stopwatch = stopwatch

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
    def may_be_detached(self) -> bool:
        """Whether it goes on where nobody listens, or what is on its way may have it do so."""
        waits = self.reason in ("tool_call", "guard") and not self._commands.waiting
        return not (self.asked or self.detached or waits)

    def ask(self) -> None:
        self.asked = True

    def ask_to_go_on(self) -> None:
        self.asked = False

    def come_back(self, step: int) -> None:
        """Somebody listens again."""
        self.detached = False
        self.go_on_if_listened(step)

    def go_on_if_listened(self, step: int) -> None:
        """Where it waits for that alone. What pauses it, or has it go on, and is on its way decides else: a
        pause of ours may find that its turn has ended, or a guard's comes behind it."""
        decided = any(isinstance(one.command, api.Pause | api.Resume) for one in self._commands)
        if self.reason == "detached" and not (self.detached or decided):
            self._commands.request(PendingCommand(api.Resume(self._number), None, step))

    def go_on_by_itself(self) -> None:
        """What it waited for is there. Where nobody listens it is paused behind that."""
        self._commands.request(PendingCommand(api.Resume(self._number), None, 0))
        if self.detached:
            self._commands.request(PendingCommand(api.Pause(self._number), None, 0))

    # -- what is told of it ----------------------------------------------------------------------

    def pause(
        self,
        reason: PauseReason,
        index: int,
        now: float,
        asked: PendingCommand | None = None,
        eta_ms: int | None = None,
    ) -> None:
        self.reason = reason
        self._tools.turn_has_ended |= reason == "tool_call"
        self._stopwatch.pause(now)
        ref = None if asked is None else asked.ref
        paused = protocol.Paused(
            request_id=self._outbox.request_id, ref=ref, index=index, reason=reason, eta_ms=eta_ms
        )
        answer(self._outbox, asked, paused)

    def wait_on(self, now: float) -> None:
        """For results, as it did before it was started again: a snapshot is to tell of that."""
        self.reason = self._outbox.paused = "tool_call"
        self._tools.turn_has_ended = not self._output.ends_injected
        self._stopwatch.pause(now)

    def resume(self, index: int, recomputed: int, now: float, asked: PendingCommand | None = None) -> None:
        self.reason = None
        # Whoever has it go on where nobody listens means it, unless it is to be paused behind that.
        self.detached &= any(isinstance(one.command, api.Pause) for one in self._commands)
        self.released = self._commands.releases
        self._tools.turn_has_ended = False
        self._stopwatch.resume(now)
        moved = self.fingerprint != self.told_fingerprint
        self.told_fingerprint = self.fingerprint
        resumed = protocol.Resumed(
            request_id=self._outbox.request_id,
            ref=None if asked is None else asked.ref,
            index=index,
            recomputed_tokens=recomputed,
            fingerprint=self.fingerprint if moved else None,
        )
        answer(self._outbox, asked, resumed)

    def take(self, change: api.Paused | api.Resumed, asked: PendingCommand, now: float) -> None:
        """The engine's reply."""
        if isinstance(change, api.Resumed):
            if not asked.silent or self.reason == "memory":  # whose end the engine tells only once
                self.resume(change.index, change.recomputed, now, asked)
        elif asked.verdict is not None:
            self._guarding.held_by = asked.verdict
            self.pause("guard", change.index, now)
        elif asked.frame is not None:
            self.pause("client", change.index, now, asked)
        else:
            if not self.holds:  # else its memory alone has gone, while it waits
                self.pause("detached", change.index, now, asked)
            self.go_on_if_listened(asked.step)

    def move_to(self, fingerprint: str, now: float) -> None:
        """Another engine. Where it may go on otherwise than it would have, its listener hears of it."""
        self.fingerprint = fingerprint
        if fingerprint != self.told_fingerprint and self.reason is None:
            self.pause("engine", len(self._output), now)
