"""The frames whose text may take long to tokenize, or whose stream is looked for, or has yet to read what was
injected, and those for the same stream behind them: they wait here, and nothing else does.

What a frame does when its turn comes is the hub's; so is whether its text is needed then. Whoever sent it
pays for what is done here as for what is done at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Iterable, KeysView
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

from msgspec.structs import replace

from midstream.protocol import StreamFrame
from realtime.hub.frame_queues import SerialQueues
from realtime.hub.frame_tokenizing import (
    Tokenized,
    check_length,
    estimated_tokens,
    is_ruled,
    length_of_known,
    stops,
    text_length,
    tokenize,
    tokenize_of_known,
)
from realtime.hub.listener import Listener, Payer
from realtime.hub.ruled_turns import ruled
from realtime.hub.slices import Slices
from realtime.hub.stream_key import StreamKey, forked_by
from realtime.hub.tokenizing_pool import TokenizingPool
from realtime.hub.waiting_frames import WaitingFrames
from realtime.refusal import Refusal
from realtime.stream.weights import weight
from realtime.tenants.quota import Quotas
from realtime.text.decoded_turn import Turns
from realtime.text.served_model import ServedModel

log = logging.getLogger(__name__)

UNCOUNTED_STOPS = 64  # of all clients, behind one frame that was counted
WOKEN_A_TURN = 256  # frames that have waited for a stream, and go on


def told(error: BaseException) -> tuple[str, str]:
    """What of an error may be logged: its kind, and where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return type(error).__name__, f"{last.filename}, line {last.lineno}"


class WaitingFrame(NamedTuple):
    frame: StreamFrame
    listener: Listener
    size: int | None  # where it is counted
    acted: Callable[[], None]  # to be called when its turn is over
    behind: asyncio.Event | None  # that another is, by which what it forks comes here
    then: list[asyncio.Event]  # of those that wait for that of this one


class Receiver(Protocol):
    """Who acts on frames."""

    def model_of(self, key: StreamKey, frame: StreamFrame) -> ServedModel | None:
        """The model of a frame's stream; None where that, or what it forks, is not there yet."""

    def awaits_forked(self, key: StreamKey, frame: StreamFrame) -> bool:
        """Whether the stream that a frame forks is looked for, or about to begin."""

    async def find(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> None:
        """A frame's stream, if it is elsewhere. Raises Refusal."""

    async def read(self, key: StreamKey, frame: StreamFrame) -> None:
        """Wait until its stream, and one that it forks, has read what was injected."""

    def known_turns(self, key: StreamKey, frame: StreamFrame) -> Turns:
        """Those of its conversation that were decoded here."""

    def settle(self, key: StreamKey) -> None:
        """What was found, or begun in its place, is there now, or will not be."""

    def due(self, key: StreamKey, frame: StreamFrame) -> StreamFrame:
        """What it comes to, now that those before it have taken effect. Raises Refusal."""

    def needs_tokens(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> bool:
        """Or the refusal of what need not be tokenized to be refused."""

    def receive(
        self, key: StreamKey, frame: StreamFrame, listener: Listener, tokens: Tokenized | None
    ) -> None: ...

    def refuse(self, listener: Listener, frame: StreamFrame, refusal: Refusal) -> None: ...

    def note_if_empty(self) -> None:
        """Nothing waits any more for some stream."""


class LongTexts:
    def __init__(
        self,
        receiver: Receiver,
        quotas: Quotas,
        pool: TokenizingPool,
        next_turn: Callable[[Callable[[], None]], object],
    ) -> None:
        self._receiver = receiver
        self._quotas = quotas
        self._queues = SerialQueues[StreamKey, WaitingFrame](self._work_off, receiver.note_if_empty)
        self._waiting_frames = WaitingFrames()
        self._forking = WeakValueDictionary[Payer, asyncio.Lock]()  # whose turn it is to fork, of each one's
        self._pool = pool
        self._woken = Slices[asyncio.Event](_wake, most=WOKEN_A_TURN, next_turn=next_turn)

    @property
    def keys(self) -> KeysView[StreamKey]:
        """Of streams for which frames wait."""
        return self._queues.keys

    def enqueue(
        self, key: StreamKey, frame: StreamFrame, listener: Listener, acted: Callable[[], None]
    ) -> bool:
        """A frame whose text may take long, or that is behind one; False where it is refused."""
        size = None if self._stops_anew(key, frame, listener) else weight(frame)
        try:
            model = self._receiver.model_of(key, frame)
            if model is not None:
                check_length(frame, model)
            if size is not None:
                self._waiting_frames.check(key.tenant, listener, size)
        except Refusal as refusal:
            self._receiver.refuse(listener, frame, refusal)
            return False
        if size is not None:
            self._waiting_frames.add(key.tenant, listener, size)
        behind = self._forked_is_there(key, frame)
        waiting = WaitingFrame(frame, listener, size, acted, behind, [])
        if not self._queues.enqueue(key, waiting):
            self._queues.start(key, waiting)
        return True

    def _forked_is_there(self, key: StreamKey, frame: StreamFrame) -> asyncio.Event | None:
        """Or will not be: set behind all that waits for the stream that is forked. None where nothing does:
        for a turn behind the last of these its queue is there yet, and empty."""
        forked = forked_by(key, frame)
        if forked is None or not self._receiver.awaits_forked(key, frame):
            return None
        last = next(iter(self._queues.latest_first(forked)), None)
        if last is None:
            return None
        last.then.append(there := asyncio.Event())
        return there

    def wake(self, waiting: Iterable[asyncio.Event]) -> None:
        """Those for which frames have waited: of thousands that wait for one stream each turn some go on."""
        self._woken.add(waiting)

    def _stops_anew(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> bool:
        """What stops is never refused, unless the same client's same stop waits and will stand; so no more of
        them wait than a few behind each frame that was counted, and these count against nobody."""
        if not stops(frame):
            return False
        uncounted = 0
        for waiting in self._queues.latest_first(key):
            if not stops(waiting.frame):
                break
            if waiting.listener is listener and replace(waiting.frame, ref=frame.ref) == frame:
                return False
            uncounted += waiting.size is None
        return uncounted < UNCOUNTED_STOPS

    async def _work_off(self, key: StreamKey, waiting: WaitingFrame) -> None:
        frame, listener, size, acted, behind, then = waiting
        try:
            if behind is not None:
                await behind.wait()
            await self._receiver.find(key, frame, listener)
            await self._receiver.read(key, frame)
            if not listener.gone:
                began_s = time.thread_time()
                frame = self._receiver.due(key, frame)
                listener.owe(time.thread_time() - began_s)
            tokens = await self._tokens(key, frame, listener)
            async with self._turn(key, frame, listener.payer):
                await self._receiver.read(key, frame)
                await self._act(key, frame, listener, tokens, acted)
        except Refusal as refusal:
            self._receiver.refuse(listener, frame, refusal)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - also of a library of another language
            self._fail(listener, frame, error, "tokenize this frame's text")
        finally:
            self.wake(then)
            self._receiver.settle(key)
            if size is not None:
                self._waiting_frames.remove(key.tenant, listener, size)

    def _turn(self, key: StreamKey, frame: StreamFrame, payer: Payer) -> AbstractAsyncContextManager[object]:
        """One's forks act one after the other, and each is paid for before the next: what they have waited
        for may be the same, and a thousand would hold everybody up for a second in one turn."""
        if forked_by(key, frame) is None:
            return nullcontext()
        return self._forking.setdefault(payer, asyncio.Lock())

    async def _act(
        self,
        key: StreamKey,
        frame: StreamFrame,
        listener: Listener,
        tokens: Tokenized | None,
        acted: Callable[[], None],
    ) -> None:
        """It is paid for when this returns."""
        if listener.gone:
            return
        began_s = time.thread_time()
        try:
            self._receiver.receive(key, frame, listener, tokens)
            acted()
        except Exception as error:  # noqa: BLE001 - whoever sent it waits for an answer
            self._fail(listener, frame, error, "act on this frame")
        await listener.pay(time.thread_time() - began_s)

    def _fail(self, listener: Listener, frame: StreamFrame, error: BaseException, to: str) -> None:
        """What it says may quote the text: only its kind is logged."""
        log.error("the server failed to %s: %s in %s", to, *told(error))
        self._receiver.refuse(listener, frame, Refusal("engine_error", f"The server failed to {to}."))

    async def _tokens(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> Tokenized | None:
        """Of a frame's text, if it needs any, when it is this client's turn."""
        if not self._receiver.needs_tokens(key, frame, listener):
            return None
        if not is_ruled(frame):
            async with self._pool.turn(key.tenant, listener, text_length(frame)):
                return await self._made(tokenize, key, frame, listener)
        made = partial(self._made, tokenize_of_known, key, frame, listener)
        length = length_of_known(frame)
        return await ruled(self._pool, key.tenant, listener, length, made, lambda: not listener.gone)

    async def _made(
        self,
        make: Callable[[StreamFrame, ServedModel, Turns], Tokenized | None],
        key: StreamKey,
        frame: StreamFrame,
        listener: Listener,
    ) -> Tokenized | None:
        """In a turn, if it is still to be."""
        if listener.gone or not self._receiver.needs_tokens(key, frame, listener):
            return None
        try:
            turns = self._receiver.known_turns(key, frame)
            model = self._receiver.model_of(key, frame)
            assert model is not None, "what has no stream needs no tokens"
            return await self._pool.run(make, frame, model, turns)
        except Refusal:
            self._quotas.count(key.tenant, estimated_tokens(frame))
            raise


def _wake(some: Iterable[asyncio.Event]) -> None:
    for waiting in some:
        waiting.set()
