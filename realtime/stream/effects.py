"""What the engine's replies come to in what one stream knows, and what is told of that: a text was put in, or
refused, parameters changed, output was taken back. It knows neither pauses nor how a stream ends."""

from __future__ import annotations

from engine import api
from midstream import protocol
from realtime.stream.context import Context
from realtime.stream.engine_commands import not_put_in
from realtime.stream.guarding import Guarding
from realtime.stream.pending_commands import PendingCommand, PendingCommands, Reply
from realtime.stream.results import Results
from realtime.stream.steering import Steering
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
        results: Results,
        steering: Steering,
    ) -> None:
        self._request_id = request_id
        self._context = context
        self._output = context.output
        self._commands = commands
        self._guarding = guarding
        self._told = told
        self._tools = tools
        self._results = results
        self._steering = steering

    def take(self, pending: PendingCommand, change: api.AnyChange) -> Reply | None:
        """Returns what is told of it, if anything is."""
        ref, request_id, index = pending.ref, self._request_id, change.index
        match pending.command, change:
            case api.Append() as command, api.Refused():
                self._guarding.forget_withheld(index)
                self._steering.stay(pending)
                self._commands.refused(pending)
                if isinstance(pending.frame, ResultInject):
                    self._tools.drop(pending.frame.result.call_id)
                return not_put_in(command, change, pending.frame).event(request_id, ref)
            case api.Append(), api.Appended() if pending.frame and self._commands.comes_again(index):
                self._commands.request(pending)  # it was accepted: it comes where that has gone back to
                return None
            case api.Append() as command, api.Appended(count=count):
                self._put_in(command, pending.frame, index)
                told = protocol.Injected(request_id=request_id, ref=ref, index=index, count=count)
                told.reason = None if pending.frame else "reasoning_tokens"
                return told
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
                if stands < before:  # perhaps with all calls that it waited for
                    self._results.go_on_behind()
                return self._told.rewound(stands, ref)
        raise AssertionError(f"no reply to {pending.command}: {change}")

    def _put_in(self, command: api.Append, frame: protocol.StreamFrame | None, index: int) -> None:
        if command.behind is not None:
            self._told.cut_behind(command.behind)
        elif index > len(self._output):
            return  # it stands behind what is withheld, and will be void
        self._context.inject(command, frame)
        self._tools.turn_has_ended &= not command.tokens
        if command.tokens and self._tools.settle():  # else it is a result that waits for others
            self._results.go_on_behind()
        if isinstance(frame, protocol.Inject) and frame.messages is not None:  # perhaps answers to some calls
            self._tools.leave()
        if isinstance(frame, protocol.Amend) and command.behind is not None:
            self._results.go_on_with_call()
