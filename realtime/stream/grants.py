"""How far the engine may decode for one stream: as its credit says, but no further ahead of its reader than
there is memory, ahead of its guards than they have read, and into reasoning than that may be long."""

from __future__ import annotations

from engine import api
from realtime.stream.context import Context
from realtime.stream.credit import Credit
from realtime.stream.memory import LOGPROB_BYTES, TOKEN_BYTES, Holding
from realtime.stream.outbox import Outbox
from realtime.stream.pending_commands import PendingCommands

GUARDED_AHEAD = 32  # tokens that are decoded, at most, before guards have read those that were


class Grants:
    def __init__(
        self,
        number: int,
        credit: Credit,
        context: Context,
        outbox: Outbox,
        commands: PendingCommands,
        memory: Holding,
    ) -> None:
        self.counts_reasoning = False  # whether somebody asks, or has asked, for it to have an end
        self._expected: object = None  # how many tokens of it there may be, as was asked last
        self._number = number
        self._credit = credit
        self._context = context
        self._output = context.output
        self._outbox = outbox
        self._commands = commands
        self._memory = memory

    def expect(self, reasoning_tokens: object) -> None:
        """What was asked for last, for when all that was asked has taken effect."""
        self._expected = reasoning_tokens
        self.counts_reasoning = self._output.spans is not None and reasoning_tokens is not None

    @property
    def knows_reasoning(self) -> bool:
        """How long that may be: nothing waits for its answer that may change it. Somebody may say other
        parameters all the time."""
        return self._commands.settled and self._expected == self._context.params.reasoning_tokens

    @property
    def reasoning_room(self) -> int | None:
        """How many tokens more until its reasoning may be too long: no more are granted, so that it ends at
        that token, whoever is quick. None where nobody asks."""
        most, spans = self._context.params.reasoning_tokens, self._output.spans
        return spans.reasoning_room(most) if spans is not None and isinstance(most, int) else None

    @property
    def _reads(self) -> bool:
        """Whether it has yet to read what was injected, where its reasoning has an end."""
        has_end = self.counts_reasoning or self._context.params.reasoning_tokens is not None
        return has_end and self._output.spans is not None and self._output.spans.reading

    @property
    def promised_bytes(self) -> int:
        """Of tokens that the engine may decode, and has not yet."""
        most = self._context.params.max_tokens
        assert isinstance(most, int), "they are complete"
        promised = min(self._credit.granted, most) - len(self._output)
        return promised * self._token_bytes if promised > 0 else 0

    @property
    def _token_bytes(self) -> int:
        """Of each token that waits."""
        top = self._context.params.logprobs
        return TOKEN_BYTES + (LOGPROB_BYTES * (1 + top) if isinstance(top, int) else 0)

    def begin(self) -> None:
        """What its submission says."""
        self._credit.granted = self._grantable()

    def go_on(self, granted: int) -> None:
        """At an engine that has been granted so much."""
        withheld = self.counts_reasoning and not self.knows_reasoning
        self._credit.granted = 0 if withheld else granted

    def hold(self) -> None:
        """What changes how long its reasoning may be is answered before more is decoded: only then it is
        known."""
        if self.counts_reasoning:
            self._grant(0)

    def send(self) -> bool:
        """More, where that is worth it; returns whether it was."""
        credit = self._credit
        if credit.granted >= credit.decode_limit:
            return False
        if self._reads or (self.counts_reasoning and not self.knows_reasoning):
            return False  # how much it may reason is not known before that is read, and answered
        sent = self._outbox.sent
        taken = sent if self._context.guards is None else len(self._output)
        if not credit.may_be_worth_granting(sent, taken):
            return False
        limit = self._grantable()
        if not credit.is_worth_granting(limit, taken):
            return False
        self._grant(limit)
        return True

    def _grant(self, limit: int) -> None:
        self._credit.granted = limit
        self._commands.send(api.Grant(self._number, limit))

    def _grantable(self) -> int:
        """Output tokens."""
        limit = self._credit.grantable(
            self._outbox.sent, room=self._memory.account.room, token_bytes=self._token_bytes
        )
        if self._context.guards is not None:
            limit = min(limit, len(self._output) + GUARDED_AHEAD)
        reasoning = self.reasoning_room
        return limit if reasoning is None else min(limit, len(self._output) + reasoning)
