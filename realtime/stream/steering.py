"""What frames ask of one stream, as commands in the order in which they were asked. It knows what the stream
will be like when all of it has taken effect, and neither whether it does nor when the stream ends."""

from __future__ import annotations

from collections.abc import Sequence

from engine import api
from midstream import protocol
from midstream.protocol import Params
from realtime.guards.watches import patterns_of
from realtime.stream.context import Context
from realtime.stream.engine_commands import SteeringFrame, commands_for
from realtime.stream.grants import Grants
from realtime.stream.guarding import Guarding
from realtime.stream.params import merged, stops
from realtime.stream.pausing import Pausing
from realtime.stream.pending_commands import Owe, PendingCommand, PendingCommands, SendReply
from realtime.stream.results import Results
from realtime.stream.tool_loop import ResultInject
from realtime.text.served_model import ServedModel
from realtime.text.stop_strings import matcher_for


class Steering:
    def __init__(
        self,
        number: int,
        context: Context,
        model: ServedModel,
        commands: PendingCommands,
        pausing: Pausing,
        guarding: Guarding,
        grants: Grants,
        results: Results,
        *,
        hold_at_eos: bool,
    ) -> None:
        self._number = number
        self._context = context
        self._model = model
        self._commands = commands
        self._pausing = pausing
        self._guarding = guarding
        self._grants = grants
        self._results = results
        self._hold_at_eos = hold_at_eos
        self._requested_params = context.params

    def ask(
        self,
        frame: SteeringFrame,
        step: int,
        now: float,
        send_reply: SendReply | None,
        owe: Owe | None,
    ) -> bool:
        """Returns whether it is to be made a command yet, of what stands then. Raises Refusal."""
        params = self._checked_params(frame)
        if isinstance(frame, ResultInject):
            frame = self._results.take(frame)
        before = self._requested_params
        self._expect(frame, params)
        self._hold_for(
            frame, reasons_otherwise=params is not None and params.reasoning_tokens != before.reasoning_tokens
        )
        matcher = None if params is None else matcher_for(stops(params))
        patterns = patterns_of((isinstance(frame, protocol.Adjust) and frame.params.guards) or ())
        for command in (commands := self._commands_for(frame, params)):
            preliminary = command is not commands[-1]
            self._commands.request(
                PendingCommand(
                    command,
                    frame,
                    step,
                    params,
                    stop_matcher=matcher,
                    patterns=() if preliminary else patterns,
                    received_s=now,
                    preliminary=preliminary,
                    send_reply=send_reply,
                    owe=owe,
                )
            )
        if isinstance(frame, protocol.Inject) and frame.resume:
            put_in = commands[-1]
            if isinstance(put_in, api.Append) and self._context.surely_takes(put_in, self._model.context):
                self._pausing.go_on_at_once()
        return None in commands

    def _checked_params(self, frame: SteeringFrame) -> Params | None:
        """An adjust's parameters, complete; raises Refusal where the frame cannot be done."""
        if isinstance(frame, protocol.Adjust):
            return merged(self._requested_params, frame.params, vocab=self._model.vocab)
        if isinstance(frame, protocol.Inject):
            assert frame.tokens is not None
            self._context.check_room(frame.at, len(frame.tokens), self._model.context)
        return None

    def _expect(self, frame: SteeringFrame, params: Params | None) -> None:
        """What is so from now on, whenever it takes effect."""
        match frame:
            case protocol.Pause(kv=kv):
                self._pausing.released |= kv == "release"
            case protocol.Resume():
                if "guard" in self._pausing.grounds and not self._pausing.asked:
                    self._guarding.let_through()
            case protocol.Adjust():
                assert params is not None
                self._requested_params = params
                self._grants.expect(params.reasoning_tokens)

    def _hold_for(self, frame: SteeringFrame, *, reasons_otherwise: bool) -> None:
        """What takes it back, or asks for less reasoning, is answered before more is decoded: only then it is
        known how much that may be."""
        at_once = isinstance(frame, protocol.Adjust | protocol.Inject) and frame.at is None
        turns_back = not (at_once or isinstance(frame, protocol.Pause | protocol.Resume))
        if turns_back or reasons_otherwise:
            self._grants.hold()

    def _commands_for(self, frame: SteeringFrame, params: Params | None) -> Sequence[api.AnyCommand | None]:
        """None stands for one that is made when all that was asked before has taken effect."""
        if isinstance(frame, protocol.Inject) and frame.at is not None:
            return [None]
        return commands_for(
            self._number,
            frame,
            params,
            self._context.rules,
            offers_tools=self._context.offers_tools,
            hold_at_eos=self._hold_at_eos,
        )
