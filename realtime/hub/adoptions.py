"""The adoption of streams whose gateway is gone, or whose client has come here from there: engines are asked
for what nobody knows here, and what one has kept is built again.

An engine that keeps a stream has all that its gateway was told: the start, as a record that means nothing to
it, and a journal of the rest. Whoever asks for the stream has it from then on, and whoever had it hears so.
It knows neither sockets nor what frames say but for the start's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from engine import api
from midstream import protocol
from midstream.protocol import StreamFrame
from realtime.hub.listener import Listener
from realtime.hub.long_texts import told
from realtime.hub.observers import Observer, StreamOrigin
from realtime.hub.rebuilt_stream import RebuiltStream
from realtime.hub.registry import LiveStream, StreamRegistry
from realtime.hub.serving import Serving
from realtime.hub.serving_engine import ServingEngine
from realtime.hub.starting import tenant_number
from realtime.hub.stream_key import StreamKey
from realtime.hub.stream_record import engine_key
from realtime.refusal import Refusal
from realtime.tenants.quota import Quotas

log = logging.getLogger(__name__)

ANSWER_S = 10.0  # for engines to say whether they keep a stream


class Found(Struct, frozen=True):
    engine: ServingEngine
    journal: api.Journal


class Asked:
    """Who has not answered, and what was found."""

    def __init__(self, engines: list[ServingEngine]) -> None:
        self.silent = set(engines)
        self.found: list[Found] = []
        self.answered = asyncio.Event()
        self.late: list[api.News] = []  # of what was found, and is being built

    def answer(self, engine: ServingEngine, journal: api.Journal | None) -> None:
        self.silent.discard(engine)
        if journal is not None:
            self.found.append(Found(engine, journal))
        if not self.silent:
            self.answered.set()


class Adoptions:
    def __init__(
        self,
        registry: StreamRegistry,
        serving: Serving,
        quotas: Quotas,
        observer: Observer,
        clock: Callable[[], float],
        wall: Callable[[], float],
        numbers: Callable[[], int],
        live: Callable[[LiveStream, float], None],
        *,
        window: int,
    ) -> None:
        """`wall`: the time that all gateways have. `numbers`: for streams. `live`: there is one more, that
        may go on for so many seconds, and that nobody listens to."""
        self._registry = registry
        self._serving = serving
        self._quotas = quotas
        self._observer = observer
        self._clock = clock
        self._wall = wall
        self._next_number = numbers
        self._live = live
        self._window = window
        self._asked: dict[int, Asked] = {}  # by the number that the stream is to have

    def may_be_found(self, key: StreamKey, frame: StreamFrame) -> bool:
        """Whether a frame may be for a stream that is elsewhere."""
        match frame:
            case protocol.Start(on_disconnect="cancel"):
                return False
            case protocol.Start(fork=None) | protocol.Attach():
                known = self._registry.by_key(key) is not None or self._registry.has_ended(key)
                return not known and any(engine.keeps for engine in self._serving.engines.values())
        return False

    async def find(self, key: StreamKey, listener: Listener) -> None:
        """If an engine has it, it is here when this returns. Raises Refusal, where it cannot be built."""
        number = self._next_number()
        engines = [engine for engine in self._serving.engines.values() if engine.keeps]
        asked = self._asked[number] = Asked(engines)
        for engine in engines:
            engine.say(api.Adopt(number, engine_key(key)))
        self._serving.flush()
        try:
            await self._answers(asked)
            # A gateway that lost an engine had it begun anew elsewhere: the latest is the stream.
            found = max(asked.found, key=lambda one: one.journal.moves, default=None)
            for other in asked.found:
                if other is not found:
                    other.engine.say(api.Cancel(number))
            if found is not None:
                await self._build(key, number, found, asked.late, listener)
        finally:
            del self._asked[number]
            self._serving.flush()

    async def _answers(self, asked: Asked) -> None:
        """Those that come in time."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await asked.answered.wait()
        except TimeoutError:
            log.warning("an engine did not say within %g s whether it keeps a stream", ANSWER_S)

    def receive(self, engine: int, adopted: api.Adopted) -> None:
        asked, answering = self._asked.get(adopted.stream), self._serving.engines[engine]
        if asked is not None and not asked.answered.is_set():
            asked.answer(answering, adopted.journal)
        elif adopted.journal is not None:  # too late: nobody waits for it here
            answering.say(api.Cancel(adopted.stream))
            self._serving.flush()

    def take_news(self, news: api.News) -> bool:
        """Of a stream that is being built; whether it was."""
        asked = self._asked.get(news.stream)
        if asked is not None:
            asked.late.append(news)
        return asked is not None

    def engine_lost(self, engine: ServingEngine) -> None:
        for asked in self._asked.values():
            if engine in asked.silent:
                asked.answer(engine, None)

    async def _build(
        self, key: StreamKey, number: int, found: Found, late: list[api.News], listener: Listener
    ) -> None:
        """A mistake of ours, or of whoever kept it, ends the stream that it shows in, and no other."""
        try:
            await self._adopt(key, number, found, late, listener)
        except Exception as error:  # noqa: BLE001 - what it says may quote the text: only its kind is logged
            log.error("a stream cannot be built from its journal: %s in %s", *told(error))
            found.engine.say(api.Cancel(number))
            raise Refusal(
                "unknown_request",
                f'Request "{key.request_id}" is lost: the server that had it is gone, and it cannot be built'
                " again.",
            ) from None

    async def _adopt(
        self, key: StreamKey, number: int, found: Found, late: list[api.News], listener: Listener
    ) -> None:
        engine, journal = found.engine, found.journal
        rebuilt = RebuiltStream(
            number,
            engine_key(key),
            journal,
            engine.model,
            tenant=tenant_number(key.tenant),
            window=self._window,
            ahead_s=self._clock() - self._wall(),
        )
        stream, record = rebuilt.stream, rebuilt.record
        await _paid_by(listener, rebuilt.replay())
        for news in late:  # more may come meanwhile
            await _paid_by(listener, rebuilt.receive(news, self._clock()))
        quota = self._quotas.take_over(key.tenant)
        entry = LiveStream(key, stream, record.digest, quota, engine, heard=rebuilt.heard)
        stream.adopt(engine, rebuilt.unsaid(), journal.credit, journal.adoptions)
        caller = listener.caller
        traceparent = record.start.traceparent
        origin = StreamOrigin(key.tenant, stream.model.name, caller.route, traceparent, caller.key)
        self._registry.add(entry)
        self._observer.started(stream, origin, self._clock())
        if self._serving.engines.get(engine.number) is engine:
            engine.give(number, len(stream.context))
            engine.progressed(number)
        else:
            self._serving.lose(entry)
        self._live(entry, record.deadline - self._wall())


async def _paid_by(listener: Listener, pieces: Iterator[None]) -> None:
    """Whoever asked for a stream pays for building it, and others have their turn in between."""
    began_s = time.thread_time()
    for _ in pieces:
        await listener.pay(time.thread_time() - began_s)
        await asyncio.sleep(0)
        began_s = time.thread_time()
    await listener.pay(time.thread_time() - began_s)
