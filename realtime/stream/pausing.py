"""What one stream is paused for, and what its listener is told of that.

Its client, a guard, its calls, or that nobody listens hold it, each from an answer of its engine on, until
another; nothing is foretold but that what cannot be refused is put in. When all that was asked but parameters
is answered it rests where something holds it, and only there; its engine is told so where that would not be
so by itself. What it lacks, an engine or memory, is told of here, and passes by itself.
"""

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
        self.reason: PauseReason | None = None  # that its listener is told
        self.grounds: set[PauseReason] = set()  # that hold it
        self.rests = False  # in its engine, as that has said last
        self.left = False  # by whoever listened: it is to be paused for that
        self.released = False  # whether what was computed was given up, and is to be computed again
        self.fingerprint = fingerprint  # of the engine that computes it; None before the first
        self.told_fingerprint = fingerprint
        self._told_loading = False  # in place of what holds it, since it was to go on
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
    def asked(self) -> bool:
        """Whether its client has paused it, when all that was asked has taken effect."""
        for pending in reversed(self._commands.waiting):
            if pending.resumes:
                return False
            if pending.frame is not None and isinstance(pending.command, api.Pause):
                return True
        return "client" in self.grounds

    @property
    def ends_with_results(self) -> bool:
        """They are all that it waits for."""
        return "tool_call" in self.grounds and not (self.asked or "guard" in self.grounds)

    # -- what holds it ---------------------------------------------------------------------------

    def await_results(self, now: float) -> None:
        """Its turn has ended, and some are missing."""
        self.grounds.add("tool_call")
        self._tools.turn_has_ended = True
        if not self.holds:
            self.pause("tool_call", len(self._output), now)

    def await_no_results(self) -> None:
        """They are there, or their calls are no more, or are to be closed first."""
        self.grounds.discard("tool_call")

    def let_go_on(self) -> None:
        """Whatever holds it."""
        self.grounds.clear()

    def go_on_at_once(self) -> None:
        """Behind what was asked last, and nothing can refuse: where that is all that was asked, and somebody
        listens, nobody need wait for its answer."""
        if self.rests and len(self._commands.waiting) == 1 and "detached" not in self.grounds:
            self._commands.request(PendingCommand(api.Resume(self._number), None, 0))

    def leave(self, step: int) -> None:
        """Nobody listens any more. Where something else is on its way it may go on behind that."""
        if not self.left and not (self.grounds and self._commands.settled):
            self._commands.request(PendingCommand(api.Pause(self._number), None, step))
        self.left = True

    def come_back(self) -> None:
        """Somebody listens again."""
        self.left = False
        self.grounds.discard("detached")

    def settle(self) -> None:
        """What may decide that has its answer: it rests where something holds it, and nowhere else, and its
        listener knows what for. Where it waits for somebody in any case, nobody need listen: whoever has it
        go on then means it."""
        if len(self.grounds) > 1:
            self.grounds.discard("detached")
        if self.rests and not self.grounds:
            self._commands.request(PendingCommand(api.Resume(self._number), None, 0))
        elif self.rests and self.reason not in self.grounds:
            index = len(self._output)
            if self.holds:  # what it waited for is there
                self._tell_resumed(index)
            self._tell_paused(next(ground for ground in HOLDING if ground in self.grounds), index)
        elif self._told_loading and self.reason is not None:
            self._tell_paused(self.reason, len(self._output))

    # -- what is told of it ----------------------------------------------------------------------

    def pause(self, reason: PauseReason, index: int, now: float, eta_ms: int | None = None) -> None:
        self._stopwatch.pause(now)
        self._tell_paused(reason, index, eta_ms=eta_ms)

    def _tell_paused(
        self, reason: PauseReason, index: int, asked: PendingCommand | None = None, eta_ms: int | None = None
    ) -> None:
        self.reason, self._told_loading = reason, False
        ref = None if asked is None else asked.ref
        paused = protocol.Paused(
            request_id=self._outbox.request_id, ref=ref, index=index, reason=reason, eta_ms=eta_ms
        )
        answer(self._outbox, asked, paused)

    def tell_loading(self, eta_ms: int | None) -> None:
        """Once. Should it not go on after all, it is told again what holds it."""
        if not self._told_loading:
            reason = self.reason
            self._tell_paused("loading", len(self._output), eta_ms=eta_ms)
            self.reason, self._told_loading = reason, True

    def wait_on(self, now: float) -> None:
        """For results, as it did before it was started again: a snapshot is to tell of that."""
        self.grounds.add("tool_call")
        self.rests = True
        self.reason = self._outbox.paused = "tool_call"
        self._tools.turn_has_ended = not self._output.ends_injected
        self._stopwatch.pause(now)

    def resume(self, index: int, recomputed: int, now: float, asked: PendingCommand | None = None) -> None:
        self._stopwatch.resume(now)
        self._tell_resumed(index, recomputed, asked)

    def _tell_resumed(self, index: int, recomputed: int = 0, asked: PendingCommand | None = None) -> None:
        self.reason, self._told_loading = None, False
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
            self._goes_on(change, asked, now)
        else:
            self._rests(change, asked, now)

    def _goes_on(self, change: api.Resumed, asked: PendingCommand, now: float) -> None:
        self.rests = False
        self.grounds.clear()
        self.released = self._commands.releases
        self._tools.turn_has_ended = False
        # What its listener never heard of need not be told to be over; a lack of memory is over here alone.
        if asked.frame is not None or self.holds or self.reason == "memory":
            self.resume(change.index, change.recomputed, now, asked)
        elif self.reason is None:
            self._stopwatch.resume(now)

    def _rests(self, change: api.Paused, asked: PendingCommand, now: float) -> None:
        self.rests = True
        self._stopwatch.pause(now)
        if asked.verdict is not None:
            self._guarding.held_by = asked.verdict
            self.grounds.add("guard")
            self._tell_paused("guard", change.index)
        elif asked.frame is not None:
            self.grounds.add("client")
            self._tell_paused("client", change.index, asked)
        elif self.left and isinstance(asked.command, api.Pause) and not asked.command.release:
            self.grounds.add("detached")  # its listener hears of it if that stands

    def move_to(self, fingerprint: str, now: float) -> None:
        """Another engine. Where it may go on otherwise than it would have, its listener hears of it."""
        self.fingerprint = fingerprint
        if fingerprint != self.told_fingerprint and self.reason is None:
            self.pause("engine", len(self._output), now)
