"""A serving engine, as the hub has it from when it is ready until it is lost: what it serves, what it has
before it, what it holds, and what it is to be told next.

It knows streams by their numbers. The engine that takes a lost one's place has its number, and is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine import api
from realtime.hub.held_blocks import HeldBlocks
from realtime.hub.router import Choice, Pace
from realtime.text.served_model import ServedModel


class ServingEngine:
    def __init__(
        self,
        number: int,
        model: ServedModel,
        block: int,
        send: Callable[[int, list[api.AnyCommand]], None],
        *,
        keeper: bytes = b"",
    ) -> None:
        """`block`: of how many tokens its blocks are. `keeper`: by which all gateways know it, where streams
        may outlive us there."""
        self.number = number
        self.model = model
        self.block = block
        self.keeper = keeper
        self.step = 0
        self.held = HeldBlocks()
        self._send = send
        self._up = True
        self._outgoing = list[api.AnyCommand]()
        self._streams = set[int]()
        self._told_streams = 0  # those that it knows, other gateways' too
        self._contexts = dict[int, int]()  # of those that it has not computed yet, their tokens
        self._waiting_tokens = 0  # of all of them
        self._pace = Pace()
        self._tells_blocks = False
        # Of streams that it was asked for, and was waited for in vain: what is to be called if it has them.
        self._unanswered: dict[int, Callable[[], None]] = {}

    @property
    def is_lost(self) -> bool:
        """Whether it is gone."""
        return not self._up

    @property
    def keeps(self) -> bool:
        """Whether streams may outlive us there."""
        return bool(self.keeper)

    @property
    def hangs(self) -> bool:
        """As far as is known: it was waited for, and has not answered since."""
        return bool(self._unanswered)

    @property
    def streams(self) -> int:
        """How many it was given."""
        return len(self._streams)

    @property
    def decodes(self) -> bool:
        """Whether it has computed the context of some stream, as far as is known."""
        return len(self._streams) > len(self._contexts)

    @property
    def token_s(self) -> float:
        """That it takes to compute a token of a context."""
        return self._pace.token_s

    def is_yet_to_compute(self, number: int) -> bool:
        """The stream's context. Of many some are yet to be given to it."""
        return number in self._contexts or number not in self._streams

    @property
    def fingerprint(self) -> str:
        return self.model.fingerprint or ""

    def choice(self, digests: Iterable[bytes]) -> Choice[ServingEngine]:
        """For a context whose blocks have these digests."""
        held = self.block * self.held.count(digests)
        return Choice(self, self._pace, self._waiting_tokens, max(self.streams, self._told_streams), held)

    def ask_for_blocks(self) -> None:
        """There are others to choose from: it is to tell what it holds."""
        if not self._tells_blocks:
            self._tells_blocks = True
            self.say(api.TellBlocks())

    def stepped(self, output: api.StepOutput) -> None:
        stats, self.step = output.stats, output.step
        self._told_streams = stats.streams
        self._pace.stepped(stats.step_s, stats.decode_rows, stats.prefill_tokens)
        if output.blocks is not None and self.held.receive(output.blocks):
            self.say(api.TellBlocks())

    def give(self, number: int, tokens: int) -> None:
        """It is to compute a stream's context, which has so many."""
        self._streams.add(number)
        self._waiting_tokens += tokens - self._contexts.get(number, 0)
        self._contexts[number] = tokens

    def progressed(self, numbers: Iterable[int]) -> None:
        """It has computed these streams' contexts, or need not."""
        if self._contexts:
            self._waiting_tokens -= sum(self._contexts.pop(number, 0) for number in numbers)

    def take(self, number: int) -> None:
        """It need not know the stream any more."""
        self.progressed((number,))
        self._streams.discard(number)

    def missed(self, number: int, late: Callable[[], None]) -> None:
        """It has not said in time whether it keeps the stream that was to have this number. `late`: to be
        called where it does."""
        self._unanswered[number] = late

    def answered(self, number: int) -> Callable[[], None] | None:
        """It has. Returns what is to be called where it keeps the stream, if it was too late."""
        return self._unanswered.pop(number, None)

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
