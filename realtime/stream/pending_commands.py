"""What one stream has asked of its engine: commands in order, and those of them that wait for an answer.

Engines come and go. While there is none, commands are kept where they matter and dropped where they do not;
the next one is told everything that was asked and not answered. This knows commands and their order, and
nothing of what an answer means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from msgspec import Struct

from engine import api
from midstream import protocol
from midstream.protocol import Params
from realtime.stream.engine_commands import Steering

Answer = protocol.StreamEvent | protocol.Error
Hear = Callable[[Answer], None]


class Asked(Struct):
    """A frame, or its `at`, that waits for the engine's answer. Without a frame it is our own doing."""

    command: api.AnyCommand
    frame: Steering | protocol.Cancel | None
    step: int  # the engine's last step when it came
    params: Params | None = None
    came_s: float = 0.0
    first: bool = False  # the rewinding that `at` asks for: the frame itself is answered by what follows
    hear: Hear | None = None  # whom to tell, if it was asked by somebody who does not listen to the stream

    @property
    def kind(self) -> str:
        return type(self.frame).__name__.lower()

    @property
    def ref(self) -> str | None:
        return None if self.first or self.frame is None else self.frame.ref

    @property
    def owed(self) -> bool:
        """Whether somebody waits for an answer to just this."""
        return self.frame is not None and not self.first


class Orders:
    def __init__(self, number: int, granted: int, send: Callable[[api.AnyCommand], None]) -> None:
        self.number = number
        self.granted = granted  # output tokens that may be decoded
        self.known = False  # whether there is an engine that knows the stream
        self._asked: deque[Asked] = deque()
        self._send = send

    def __iter__(self) -> Iterator[Asked]:
        return iter(self._asked)

    def submit(self, submit: api.Submit) -> None:
        """To an engine that does not know the stream, and then all that was not answered."""
        self.known = True
        self._send(submit)
        for asked in self._asked:
            asked.step = 0  # a new engine counts its steps anew
            self._send(asked.command)

    def ask(self, asked: Asked) -> None:
        self._asked.append(asked)
        self.tell(asked.command)

    def answered(self) -> Asked:
        """What is answered next: the engine answers in the order of the commands."""
        return self._asked.popleft()

    def grant(self, credit: int) -> None:
        """Grants never shrink."""
        if credit > self.granted:
            self.granted = credit
            self.tell(api.Grant(self.number, credit))

    def tell(self, command: api.AnyCommand) -> None:
        """Something that has no answer. Without an engine there is nobody who need hear it."""
        if self.known:
            self._send(command)

    def clear(self) -> list[Asked]:
        """The stream has ended: what will not be answered any more."""
        left = list(self._asked)
        self._asked.clear()
        return left
