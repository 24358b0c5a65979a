"""What gateways leave for each other with engines that they share: each thing by a name, with one that all of
them would choose, and whoever asks first has it. A gateway that shares none keeps it itself.

It knows engines that keep what outlives a gateway, and not what is left there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine import api
from engine import deposits as own
from realtime.hub.keepers import ANSWER_S, answering, chosen
from realtime.hub.serving import Serving
from realtime.hub.serving_engine import ServingEngine
from realtime.hub.starting import tenant_number
from realtime.refusal import Refusal

DepositAnswer = api.Deposited | api.Collected


class Asked:
    """Engines that were asked the same, until one has what was asked for, or none."""

    def __init__(self, engines: list[ServingEngine]) -> None:
        self.silent = set(engines)
        self.answer: asyncio.Future[DepositAnswer | None] = asyncio.get_running_loop().create_future()
        self._done_if_all_have_answered()

    def receive(self, engine: ServingEngine, answer: DepositAnswer | None) -> None:
        self.silent.discard(engine)
        if _settles(answer) and not self.answer.done():
            self.answer.set_result(answer)
        self._done_if_all_have_answered()

    def _done_if_all_have_answered(self) -> None:
        if not self.silent and not self.answer.done():
            self.answer.set_result(None)


class Deposits:
    def __init__(self, serving: Serving, numbers: Callable[[], int], clock: Callable[[], float]) -> None:
        self._serving = serving
        self._next_number = numbers
        self._clock = clock
        self._own = own.Deposits()
        self._asked: dict[int, Asked] = {}

    async def leave(self, name: bytes, what: bytes, for_s: float, tenant: str) -> bool:
        """Whether it is there: too many of one tenant's are not. Raises Refusal, where it may not be."""
        engine, number_of = chosen(name, answering(self._serving)), tenant_number(tenant)
        if engine is None:
            return self._own.leave(name, what, for_s, self._clock(), number_of)
        answer = await self._ask([engine], lambda number: api.Deposit(number, name, what, for_s, number_of))
        if not isinstance(answer, api.Deposited):
            raise Refusal(
                "overloaded",
                "The engine that was to keep this for other gateways has not said that it does: ask again.",
                retry_after_ms=1000,
            )
        return answer.kept

    async def collect(self, name: bytes) -> bytes | None:
        """It is nobody else's from now on."""
        what = self._own.collect(name, self._clock())
        if what is None and (keepers := answering(self._serving)):
            answer = await self._ask(keepers, lambda number: api.Collect(number, name))
            return answer.what if isinstance(answer, api.Collected) else None
        return what

    def receive(self, engine: ServingEngine, answer: DepositAnswer) -> None:
        asked = self._asked.get(answer.stream)
        if asked is not None:
            asked.receive(engine, answer)

    def engine_lost(self, engine: ServingEngine) -> None:
        for asked in self._asked.values():
            asked.receive(engine, None)

    async def _ask(
        self, engines: list[ServingEngine], question: Callable[[int], api.AnyCommand]
    ) -> DepositAnswer | None:
        number = self._next_number()
        asked = self._asked[number] = Asked(engines)
        for engine in engines:
            engine.say(question(number))
        self._serving.flush()
        try:
            return await asyncio.wait_for(asked.answer, ANSWER_S)
        except TimeoutError:
            return None
        finally:
            del self._asked[number]


def _settles(answer: DepositAnswer | None) -> bool:
    """Whether it is what was asked for, whatever others say."""
    return isinstance(answer, api.Deposited) or (answer is not None and answer.what is not None)
