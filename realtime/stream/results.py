"""The results of calls on their way into one stream: which are missing, and when they are put in. All is
judged as it will be when what was asked has taken effect. It knows commands, and no listener; which wait for
which is known to `tool_loop.py`."""

from __future__ import annotations

from msgspec.structs import replace

from midstream import protocol
from realtime.stream.calls_then import calls_then
from realtime.stream.context import Context
from realtime.stream.engine_commands import append_for
from realtime.stream.pausing import Pausing
from realtime.stream.pending_commands import PendingCommand, PendingCommands
from realtime.stream.spanned_text import Call
from realtime.stream.tool_loop import ResultInject, ToolLoop
from realtime.text.served_model import ServedModel


class Results:
    def __init__(
        self,
        number: int,
        context: Context,
        model: ServedModel,
        tools: ToolLoop,
        commands: PendingCommands,
        pausing: Pausing,
    ) -> None:
        self._number = number
        self._context = context
        self._model = model
        self._tools = tools
        self._commands = commands
        self._pausing = pausing

    @property
    def _missing(self) -> list[Call]:
        """The calls that have no result then."""
        calls = calls_then(self._tools.calls, self._commands, len(self._context.output))
        return [call for call in calls if call.answered is None]

    @property
    def _turn_has_ended(self) -> bool:
        """Then: of one that is amended, or goes on, the model writes on, and a text may open another call."""
        if self._goes_on or any(_is_text(asked.frame) for asked in self._commands):
            return False
        ended = self._tools.turn_has_ended and not self._commands.goes_back
        return ended or self._pausing.ends_with_results

    @property
    def _goes_on(self) -> bool:
        amends = any(isinstance(asked.frame, protocol.Amend) for asked in self._commands)
        return amends or self._commands.resumes

    def inject_of(self, result: protocol.ToolResult) -> ResultInject:
        """What it puts into the stream, if nothing has come between when it is taken in."""
        return ResultInject(
            request_id=result.request_id,
            ref=result.ref,
            messages=self._tools.told_with(result, self._missing),
            resume=self._pausing.ends_with_results,
            result=result,
        )

    def take(self, inject: ResultInject) -> ResultInject:
        """Returns what is put in now. Raises Refusal."""
        return self._tools.take(inject, self._missing, ended=self._turn_has_ended)

    def take_to_tell(self) -> protocol.ToolResult | None:
        """Where results waited for others that will not come, since a rewind took back their calls: the last
        of them, which is to be told once more, since all together were never made a turn."""
        if not (self._tools.left and self._commands.settled and self._turn_has_ended):
            return None
        return self._tools.take_left(self._tools.missing)

    def put_in_due(self) -> None:
        """Results that waited for the end of the turn, or for what a text before them might open."""
        is_due = self._tools.has_due and self._turn_has_ended
        due = self._tools.take_due(self._missing) if is_due else None
        if due is None:
            return
        put_in = append_for(self._number, due, offers_tools=self._context.offers_tools)
        # Whether it is to go on was asked when it came; it may have been paused since.
        self._commands.request(PendingCommand(put_in, replace(due, ref=None, resume=False), 0))
        if self._pausing.ends_with_results and self._context.surely_takes(put_in, self._model.context):
            self._pausing.go_on_at_once()


def _is_text(frame: object) -> bool:
    """Whether it goes on in the model's own turn."""
    return isinstance(frame, protocol.Inject) and frame.messages is None and bool(frame.tokens)
