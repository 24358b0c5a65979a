"""What the engine's replies come to in what one stream knows, and what is told of that: a text was put in, or
refused, parameters changed, output was taken back; and what waited for that does so no more. It does not know
how a stream ends."""

from __future__ import annotations

from msgspec.structs import replace

from engine import api
from midstream import protocol
from realtime.stream.context import Context
from realtime.stream.engine_commands import not_put_in
from realtime.stream.guarding import Guarding
from realtime.stream.pausing import Pausing
from realtime.stream.pending_commands import PendingCommand, PendingCommands, Reply
from realtime.stream.told_output import ToldOutput
from realtime.stream.tool_loop import ResultInject, ToolLoop


class Effects:
    def __init__(
        self,
        request_id: str,
        context: Context,
        commands: PendingCommands,
        guarding: Guarding,
        told: ToldOutput,
        tools: ToolLoop,
        pausing: Pausing,
    ) -> None:
        self._request_id = request_id
        self._context = context
        self._output = context.output
        self._commands = commands
        self._guarding = guarding
        self._told = told
        self._tools = tools
        self._pausing = pausing

    def take(self, pending: PendingCommand, change: api.AnyChange) -> Reply | None:
        """Returns what is told of it, if anything is."""
        ref, request_id, index = pending.ref, self._request_id, change.index
        match pending.command, change:
            case api.Append() as command, api.Appended() | api.Refused():
                return self._take_append(pending, command, change)
            case api.Adjust(), api.Adjusted():
                assert pending.params is not None
                self._context.adjust(pending.params)
                if (stands := self._commands.stands_at(index)) < index:
                    index = min(stands, len(self._output))
                return protocol.Adjusted(request_id=request_id, ref=ref, index=index, params=pending.params)
            case api.Truncate(), api.Truncated() if pending.silent:
                # It may have gone back further since, and what came there was withheld for this.
                self._guarding.forget_withheld(index)
                return None
            case api.Truncate(), api.Truncated():
                # One behind another may leave what was withheld for that, and told to nobody.
                self._guarding.forget_withheld(index)
                before = len(self._output)
                self._told.cut(stands := min(index, before))
                if stands < before and not self._tools.missing:
                    self._pausing.await_no_results()
                return self._told.rewound(stands, ref)
        raise AssertionError(f"no reply to {pending.command}: {change}")

    def _take_append(
        self, pending: PendingCommand, command: api.Append, change: api.Appended | api.Refused
    ) -> Reply | None:
        frame, index = pending.frame, change.index
        if isinstance(change, api.Refused):
            self._guarding.forget_withheld(index)
            self._commands.refused(pending)
            if isinstance(frame, ResultInject):
                self._tools.drop(frame.result.call_id)
            return not_put_in(command, change, frame).event(self._request_id, pending.ref)
        if isinstance(frame, protocol.Inject) and frame.resume and not isinstance(frame, ResultInject):
            self._pausing.let_go_on()
            pending.frame = replace(frame, resume=False)  # here, wherever it comes again
        if frame and self._commands.comes_again(index):
            self._commands.request(pending)  # it was accepted: it comes where that has gone back to
            return None
        self._put_in(command, frame, index)
        told = protocol.Injected(
            request_id=self._request_id, ref=pending.ref, index=index, count=change.count
        )
        told.reason = None if frame else "reasoning_tokens"
        return told

    def _put_in(self, command: api.Append, frame: protocol.StreamFrame | None, index: int) -> None:
        if command.behind is not None:
            self._told.cut_behind(command.behind)
        elif index > len(self._output):
            return  # it stands behind what is withheld, and will be void
        self._context.inject(command, frame)
        self._tools.turn_has_ended &= not command.tokens
        has_results = bool(command.tokens) and self._tools.settle()  # else one that waits for others
        if has_results and (isinstance(frame, ResultInject) or not self._tools.missing):
            self._pausing.await_no_results()
        if isinstance(frame, protocol.Inject) and frame.messages is not None:  # perhaps answers to some calls
            self._tools.leave()
        if isinstance(frame, protocol.Amend) and command.behind is not None:
            self._pausing.await_no_results()  # before the model has closed the call
