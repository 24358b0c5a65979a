"""What one stream's guards have found, carried out: told, taken back, or held against what comes. What they
would take back nobody hears of. It does not know how a stream ends, nor how it pauses."""

from __future__ import annotations

from engine import api
from midstream.protocol import GuardAction
from realtime.guards.acts import Act
from realtime.guards.guards import Verdict
from realtime.stream.context import Context
from realtime.stream.grants import Grants
from realtime.stream.outbox import Outbox
from realtime.stream.pending_commands import PendingCommand, PendingCommands
from realtime.stream.span_events import guarded
from realtime.stream.told_output import ToldOutput


class Guarding:
    def __init__(
        self,
        number: int,
        context: Context,
        outbox: Outbox,
        told: ToldOutput,
        commands: PendingCommands,
        grants: Grants,
    ) -> None:
        self.held_by: Verdict | None = None  # that it was paused for last, unless that was let through
        self.has_withheld = False  # something, for what has yet to go back: what comes behind it is void, too
        self._number = number
        self._context = context
        self._outbox = outbox
        self._told = told
        self._commands = commands
        self._grants = grants
        self._acted: list[GuardAction] = []  # what guards did, and nobody has counted

    @property
    def withholds(self) -> bool:
        """Whether what is decoded is told to nobody, and counts for nothing: it will be void. Who has guards
        hears of nothing that they would take back."""
        commands, guards = self._commands, self._context.guards
        return commands.goes_back and (guards is not None or commands.goes_back_untold or self.has_withheld)

    def forget_withheld(self, known: int) -> None:
        """What was to take back what is withheld is refused. The engine knows so many output tokens, and
        makes those anew that nobody was told of."""
        output = len(self._context.output)
        if known > output:
            back = api.Truncate(self._number, output)
            self._commands.request(PendingCommand(back, None, 0, silent=True))

    def act(self, verdicts: list[Verdict]) -> Verdict | None:
        """Do what guards say; what they only tell counts for nothing where it does not stand. Returns what
        ends the stream."""
        if verdicts and verdicts[-1].do != "tell":
            verdicts = verdicts[-1:]
        for verdict in verdicts:
            self._acted.append(verdict.do)
            self._outbox.put(guarded(self._outbox.request_id, verdict))
            self._carry_out(verdict)
        return verdicts[-1] if verdicts and verdicts[-1].do == "finish" else None

    def _carry_out(self, verdict: Verdict) -> None:
        if verdict.do == "tell":
            if verdict.guard.budget:
                self._context.acts.add(Act(verdict.guard, verdict.index))
        elif verdict.do == "finish":
            self._cut(verdict.index)
        else:
            self._grants.hold()
            back = api.Truncate(self._number, verdict.index, verdict.token)
            pauses = verdict.do == "pause"
            self._commands.request(PendingCommand(back, None, 0, verdict=verdict, preliminary=pauses))
            if pauses:
                self._commands.request(PendingCommand(api.Pause(self._number), None, 0, verdict=verdict))

    def gone_back(self, verdict: Verdict, index: int) -> None:
        """The engine has."""
        if verdict.token is None:
            self._told.take_back(index)
            return
        if index == verdict.index:  # else it has gone back further, and what was found has not come to be
            self._context.acts.add(Act(verdict.guard, index, verdict.token))
        self._cut(index)

    def _cut(self, index: int) -> None:
        self._told.cut(index, by_guard=True)
        self._outbox.put(self._told.rewound(index))

    def let_through(self) -> None:
        """Who goes on from where a guard has paused means what was found, unless that is taken back: what has
        yet to go back to before that forgets it then."""
        found, self.held_by = self.held_by, None
        if found and found.index <= len(self._context.output):
            self._context.acts.add(Act(found.guard, found.index))

    def take_acted(self) -> list[GuardAction]:
        acted, self._acted = self._acted, []
        return acted
