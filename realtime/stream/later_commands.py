"""The commands of one stream that hang on what stands when all that was asked before has taken effect: they
approve a call or amend it, or put a text in at a token. They are made then, or refused. It knows what stands,
and nothing of what the engine makes of it."""

from __future__ import annotations

from engine import api
from midstream import protocol
from realtime.refusal import Refusal
from realtime.stream.amendment import amendment
from realtime.stream.answers import answer
from realtime.stream.context import Context
from realtime.stream.engine_commands import append_for
from realtime.stream.grants import Grants
from realtime.stream.outbox import Outbox
from realtime.stream.pending_commands import PendingCommand, PendingCommands, Reply
from realtime.stream.tool_loop import ToolLoop
from realtime.text.served_model import ServedModel

MADE_A_TURN = 16  # approvals, and what is refused: a thousand may have waited for an engine


class LaterCommands:
    def __init__(
        self,
        number: int,
        context: Context,
        model: ServedModel,
        outbox: Outbox,
        tools: ToolLoop,
        commands: PendingCommands,
        grants: Grants,
    ) -> None:
        self._number = number
        self._context = context
        self._output = context.output
        self._model = model
        self._outbox = outbox
        self._tools = tools
        self._commands = commands
        self._grants = grants

    def make(self) -> None:
        """Up to one amendment, which reads its call again, or a few of the others, each of which looks at all
        calls: others have their turn before the next."""
        left = MADE_A_TURN
        while left and (asked := self._commands.to_make) is not None:
            left = 0 if isinstance(asked.frame, protocol.Amend) else left - 1
            try:
                if isinstance(asked.frame, protocol.Amend):
                    self._commands.make(self._amend(asked.frame))
                    return
                if isinstance(asked.frame, protocol.Inject):
                    self._commands.make(self._inject_at(asked.frame))
                    return
                event: Reply = self._approve(asked)
            except Refusal as refusal:
                self._commands.refused(asked)
                event = refusal.event(self._outbox.request_id, asked.ref)
            answer(self._outbox, asked, event)
            self._commands.drop_first()

    def _amend(self, frame: protocol.Amend) -> api.Append:
        call = self._tools.find(frame.call_id)
        change = amendment(self._output, call, frame, self._model)
        if change.behind is not None:
            self._grants.hold()
        return api.Append(self._number, change.tokens, behind=change.behind)

    def _inject_at(self, frame: protocol.Inject) -> api.Append:
        """In place of all from that token on: where it is refused, that stays."""
        assert frame.at is not None, "else it is a command at once"
        at = min(frame.at, len(self._output))
        behind = at + self._output.injected(before=at)
        return append_for(self._number, frame, offers_tools=self._context.offers_tools, behind=behind)

    def _approve(self, asked: PendingCommand) -> protocol.Approved:
        """Which no engine need hear of."""
        assert isinstance(asked.frame, protocol.Approve), "all others are commands"
        call = self._tools.approve(asked.frame.call_id)
        unsent = [event for pending in self._outbox.unsent for event in pending.beside]
        self._tools.tell_approvals(unsent)  # among it perhaps that it waits for this
        return protocol.Approved(
            request_id=self._outbox.request_id, ref=asked.ref, index=call.index, call_id=call.call_id
        )
