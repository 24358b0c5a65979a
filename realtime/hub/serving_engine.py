"""A serving engine, as the hub has it from when it is ready until it is lost: what it serves, what it has
before it, and what it is to be told next.

It knows streams by their numbers. The engine that takes a lost one's place has its number, and is another.
"""

from __future__ import annotations

from collections.abc import Callable

from engine import api
from realtime.hub.router import Load, Pace
from realtime.text.served_model import ServedModel


class ServingEngine:
    def __init__(
        self, number: int, model: ServedModel, send: Callable[[int, list[api.AnyCommand]], None]
    ) -> None:
        self.number = number
        self.model = model
        self.step = 0
        self._send = send
        self._up = True
        self._outgoing = list[api.AnyCommand]()
        self._streams = set[int]()
        self._contexts = dict[int, int]()  # of those that it has not computed yet, their tokens
        self._waiting_tokens = 0  # of all of them
        self._pace = Pace()

    @property
    def fingerprint(self) -> str:
        return self.model.fingerprint

    @property
    def load(self) -> Load:
        return Load(self._pace, self._waiting_tokens, len(self._streams))

    def stepped(self, output: api.StepOutput) -> None:
        stats, self.step = output.stats, output.step
        self._pace.stepped(stats.step_s, stats.decode_rows, stats.prefill_tokens)

    def give(self, number: int, tokens: int) -> None:
        """It is to compute a stream's context, which has so many."""
        self._streams.add(number)
        self._waiting_tokens += tokens - self._contexts.get(number, 0)
        self._contexts[number] = tokens

    def progressed(self, number: int) -> None:
        """It has computed the stream's context, or need not."""
        self._waiting_tokens -= self._contexts.pop(number, 0)

    def take(self, number: int) -> None:
        """It need not know the stream any more."""
        self.progressed(number)
        self._streams.discard(number)

    def say(self, command: api.AnyCommand) -> None:
        if self._up:
            self._outgoing.append(command)

    def flush(self) -> None:
        if self._outgoing:
            commands, self._outgoing = self._outgoing, []
            self._send(self.number, commands)

    def lose(self) -> None:
        """Nobody hears what is said to it any more."""
        self._up = False
        self._outgoing = []
