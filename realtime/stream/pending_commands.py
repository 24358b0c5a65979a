"""The commands that one stream has sent to its engine, in order, and those of them that wait for a reply.

Engines come and go. While there is none, commands are kept where they matter and dropped where they do not;
the next one is sent everything that had no reply. This knows commands and their order, and nothing of what a
reply means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from msgspec import Struct

from engine import api
from midstream import protocol
from midstream.protocol import Params
from realtime.guards.guards import Verdict
from realtime.stream.engine_commands import SteeringFrame
from realtime.stream.memory import command_bytes
from realtime.text.stop_strings import StopMatcher

Reply = protocol.StreamEvent | protocol.Error
SendReply = Callable[[Reply], None]
Owe = Callable[[float], None]  # told how many seconds of work a frame made once it took effect


class PendingCommand(Struct):
    """A command that waits for the engine's reply. Without a frame it is our own doing."""

    command: api.AnyCommand
    frame: SteeringFrame | protocol.Cancel | None
    step: int  # the engine's last step when the frame came
    params: Params | None = None
    received_s: float = 0.0
    stop_matcher: StopMatcher | None = None  # of `params`: built when it is asked for, by whoever asks
    preliminary: bool = False  # the rewind that `at` asks for: the frame itself has its reply by what follows
    send_reply: SendReply | None = None  # to whoever steers a stream that another listens to
    owe: Owe | None = None  # whoever steers, and pays for it
    verdict: Verdict | None = None  # of a guard, whose doing it is
    silent: bool = False  # nobody is told that it took effect

    @property
    def kind(self) -> str:
        return type(self.frame).__name__.lower()

    @property
    def ref(self) -> str | None:
        return None if self.preliminary or self.frame is None else self.frame.ref

    @property
    def wants_reply(self) -> bool:
        """Whether somebody waits for a reply to just this."""
        return self.frame is not None and not self.preliminary


class PendingCommands:
    def __init__(self, send: Callable[[api.AnyCommand], None]) -> None:
        self.has_engine = False  # whether there is an engine that knows the stream
        self.bytes = 0  # of those that wait
        self._pending: deque[PendingCommand] = deque()
        self._send = send

    @property
    def waiting(self) -> bool:
        return bool(self._pending)

    def __iter__(self) -> Iterator[PendingCommand]:
        return iter(self._pending)

    def submit(self, submit: api.Submit) -> None:
        """To an engine that does not know the stream, and behind it all that had no reply."""
        self.has_engine = True
        self._send(submit)
        for pending in self._pending:
            pending.step = 0  # a new engine counts its steps anew
            self._send(pending.command)

    def request(self, pending: PendingCommand) -> None:
        self._pending.append(pending)
        self.bytes += command_bytes(pending.command, pending.params)
        self.send(pending.command)

    def pop_replied(self) -> PendingCommand:
        """The command that the next reply is to: the engine replies in the order of the commands."""
        replied = self._pending.popleft()
        self.bytes -= command_bytes(replied.command, replied.params)
        return replied

    def send(self, command: api.AnyCommand) -> None:
        """A command that has no reply. Without an engine there is nobody who need hear it."""
        if self.has_engine:
            self._send(command)

    @property
    def goes_back(self) -> bool:
        """Whether what is decoded until all is replied will be void."""
        return any(isinstance(pending.command, api.Truncate) for pending in self._pending)

    @property
    def has_verdict(self) -> bool:
        return any(pending.verdict is not None for pending in self._pending)

    def clear(self) -> list[PendingCommand]:
        """The stream has ended: the commands that will have no reply any more."""
        left = list(self._pending)
        self._pending.clear()
        self.bytes = 0
        return left
