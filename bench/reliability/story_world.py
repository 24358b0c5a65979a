"""The world of a story: a server outside of time, where texts take any time to become tokens, and what goes
on there whoever steers: steps, deliveries, connections that stall and go, engines that die, and looks at
what must hold at any time.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import random

from bench.reliability.story_readers import Answers, Client, Listener
from bench.reliability.story_starts import TEMPLATES
from engine import toy_model
from realtime.hub.stream_key import StreamKey
from realtime.refusal import Refusal
from realtime.stream.stream import Stream
from realtime.text.tokenizer import Tokenizer
from tests.fakes.resubmitted import check_engines
from tests.fakes.simulated_client import TENANT
from tests.fakes.simulated_server import EngineSize, SimulatedServer
from tests.fakes.unhurried_pool import UnhurriedPool

GRACE_S = 120.0  # longer than anybody waits for those who went
PATIENCE = 2000  # turns of the event loop in which texts have become tokens
LOGGERS = [logging.getLogger(name) for name in ("realtime", "engine", "asyncio")]


class World:
    def __init__(self, chance: random.Random, client: Client) -> None:
        self.answers = Answers()
        self.compared = 0  # streams in their engines, with what they would be in others
        self._chance = chance
        self._client = client
        size = EngineSize(
            kv_tokens=chance.choice([1024, 2048, 4096]),
            block=16,
            step_tokens=chance.choice([64, 4096]),
            batch_rows=chance.choice([2, 16]),
            slots=4,
            overlap=chance.random() < 0.3,
            at_once=True,
        )
        self.server = SimulatedServer(
            size,
            tokenizer=_tokenizer(chance.choice(TEMPLATES)),
            keeps=chance.random() < 0.7,
            engines=chance.choice([1, 1, 2]),
            window=chance.choice([3, 8, 64]),
            max_streams=8,
        )
        self.server.hub._long_texts._pool = UnhurriedPool(chance)
        self.listeners = [self._connection() for _ in range(2)]

    def _connection(self) -> Listener:
        return Listener(self.server, self.answers, self._client)

    def find(self, name: str) -> Stream | None:
        """A stream that lives or has ended, unless it was forgotten."""
        try:
            return self.server.hub._registry.find(StreamKey(TENANT, name), self.server.clock())
        except Refusal:
            return None

    # -- what goes on ------------------------------------------------------------------------------

    def tick(self) -> None:
        for _ in range(self._chance.choice([1, 1, 2, 5, 12])):
            self.server.tick()

    def part_of_a_tick(self) -> None:
        part = self._chance.choice([self.server.deliver_down, self.server.step, self.server.deliver_up])
        part(self._chance.randrange(len(self.server.engines)))

    def wait(self) -> None:
        self.server.clock.advance(self._chance.choice([0.02, 0.02, 5]))

    def kill(self) -> None:
        number = self._chance.randrange(len(self.server.engines))
        if self.server.engines[number].alive:
            self.server.kill_engine(number)

    def revive(self) -> None:
        for number, engine in enumerate(self.server.engines):
            if not engine.alive:
                self.server.revive_engine(number=number)

    def leave(self) -> None:
        """A connection breaks, and another stands in for it."""
        at = self._chance.randrange(len(self.listeners))
        gone, self.listeners[at] = self.listeners[at], self._connection()
        gone.leave()

    def stall(self) -> None:
        """Or read again."""
        listener = self._chance.choice(self.listeners)
        listener.ready = not listener.ready
        listener.flush()

    def look(self) -> None:
        """Mostly when nothing is under way, or to be computed."""
        if self._chance.random() < 0.8:
            self.until_at_rest()
        for _ in range(self._chance.randrange(4)):
            if not all(engine.heard_all for engine in self.server.engines):
                self.server.tick()
        self.compared += check_engines(self.server)
        self.server.check_kept()

    # -- the end -----------------------------------------------------------------------------------

    def until_at_rest(self, most: int = 20) -> None:
        for _ in range(most):
            if not self.server.at_rest:
                self.server.tick()

    @property
    def waiting_for_tokens(self) -> set[str]:
        """The streams of which a text is not tokens yet."""
        return {key.request_id for key in self.server.hub._long_texts.keys}

    async def until_texts_are_tokens(self) -> None:
        for _ in range(PATIENCE):
            if not self.waiting_for_tokens:
                return
            await asyncio.sleep(0)
        raise AssertionError("texts wait, and nobody makes tokens of them")

    def check_nothing_is_held(self) -> None:
        """All streams have ended, and nobody comes back any more."""
        hub = self.server.hub
        self.server.clock.advance(GRACE_S)
        self.until_at_rest()
        self.server.check_empty()
        for listener in self.listeners:
            listener.leave()
        self.server.clock.advance(1)
        for account in (hub.accounts.total, *hub.accounts.of_tenant.values(), *hub.accounts._unread.values()):
            counted = account.held, account.promised
            assert counted == (0, 0), f"{counted} bytes are held, and promised, for nothing"
        taken = hub._quotas._accounts[TENANT].here
        assert (taken.streams, taken.waiting) == (0, 0), f"{taken} is counted for streams that are no more"
        assert not hub._registry._payers, "somebody pays for streams that are no more"
        assert not hub._departures.left, "streams that are no more wait to be brought in order"
        assert hub._incoming._lines.empty, "news wait of streams that are no more"
        assert not hub._long_texts._waiting_frames._frames, "frames are counted that do not wait"
        assert hub._awaited.count() == 0, "starts are counted that do not wait"


class Complaints(logging.Handler):
    """What is logged, which nothing here is a reason for."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())

    def __enter__(self) -> None:
        for logger in LOGGERS:
            logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        for logger in LOGGERS:
            logger.removeHandler(self)


@functools.cache
def _tokenizer(template: str) -> Tokenizer:
    definition = json.loads((toy_model.FOLDER / "tokenizer.json").read_text())
    return Tokenizer(definition, template)
