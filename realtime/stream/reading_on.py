"""What one stream reads of its output without a new token: what was injected, a part at a time, and what its
guards have yet to read. What is found is told beside tokens. It knows no engine, and no end."""

from __future__ import annotations

from realtime.stream.context import Context
from realtime.stream.guarding import Guarding
from realtime.stream.pending_commands import PendingCommands
from realtime.stream.told_output import ToldOutput


class ReadingOn:
    def __init__(
        self, context: Context, told: ToldOutput, guarding: Guarding, commands: PendingCommands
    ) -> None:
        self._context = context
        self._output = context.output
        self._told = told
        self._guarding = guarding
        self._commands = commands

    def read_on(self) -> None:
        guards, spans = self._context.guards, self._output.spans
        if guards is not None and guards.reading:
            guards.read_on()
        elif spans is not None and spans.reading:
            spans.read_on()
            self.put_beside(len(self._output), "")

    def read_all(self) -> None:
        """Which calls there are hangs on nothing that may take more or less time."""
        while self._output.spans is not None and self._output.spans.reading:
            self.read_on()

    def put_beside(self, index: int, text: str) -> None:
        """What is told without a token: held back until the end, or part of a call by an injection."""
        beside = self._told.take_beside()
        if self._context.guards is not None:
            self._context.guards.read(text, beside)
        if not self._commands.takes_back(index):
            self._told.put_without_token(index, text, beside)
