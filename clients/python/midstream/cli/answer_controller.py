"""One answer of a conversation: what comes of it goes to the view, what the person wants to the stream.

Wishes are carried out one after another, in the order of the keys, while reading goes on. It does not know
the terminal: it is given a way to ask for a line.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

from midstream.cli.answer_view import TEMPERATURE_STEP, View
from midstream.cli.key_bindings import Intent
from midstream.cli.sanitize import inert
from midstream.errors import ConnectionLost, RequestError, RequestFinished
from midstream.stream import Stream


class Answer:
    def __init__(
        self,
        stream: Stream,
        view: View,
        ask: Callable[[str], Awaitable[str | None]],
        changed: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._view = view
        self._ask = ask
        self._changed = changed
        self._acts: dict[Intent, Callable[[], Awaitable[object]]] = {
            Intent.TOGGLE: self._toggle,
            Intent.STOP: stream.cancel,
            Intent.WARMER: lambda: self._warm(TEMPERATURE_STEP),
            Intent.COOLER: lambda: self._warm(-TEMPERATURE_STEP),
            Intent.INTERJECT: self._interject,
            Intent.REWIND: self._rewind,
        }
        temperature = stream.params.temperature
        if isinstance(temperature, int | float):
            view.temperature, view.since = temperature, 0

    async def read(self) -> None:
        """Show the answer up to its end."""
        while (chunk := await self._stream.next()) is not None:
            self._view.took(chunk, time.monotonic())
            self._look()

    async def obey(self, wishes: asyncio.Queue[Intent]) -> None:
        """Carry out wishes for ever. What the server refuses is said; what comes too late is no matter."""
        while True:
            wish = await wishes.get()
            self._view.problem = None
            try:
                await self._acts[wish]()
            except RequestFinished:
                pass
            except (RequestError, ConnectionLost) as refusal:  # reading finds out where all is lost
                self._view.problem = inert(str(refusal))
            self._look()

    def _look(self) -> None:
        """Steering may have taken back what is shown; what stands and was read is known to the stream."""
        self._view.cut(self._stream.consumed)
        self._view.paused(self._stream.pause_reason)
        self._view.ended = self._stream.final is not None
        self._changed()

    async def _toggle(self) -> None:
        await (self._stream.resume() if self._stream.pause_reason == "client" else self._stream.pause())

    async def _warm(self, by: float) -> None:
        wanted = self._view.warm(by)
        self._changed()
        self._view.adjusted(await self._stream.adjust(temperature=wanted), wanted)

    async def _rewind(self) -> None:
        # Under the same seed the same words would come again: another one goes with it, at the same token.
        await self._stream.adjust(at=self._view.rewind_target(), seed=secrets.randbits(53))

    async def _interject(self) -> None:
        """Pause, ask, put it where the person has read to, and go on: also if nothing was said after all."""
        was_paused = self._stream.pause_reason == "client"
        if not was_paused:
            await self._stream.pause()
            self._look()
        try:
            said = await self._ask("interject ▸ ")
            if said:
                await self._inject(said)
        finally:
            if not was_paused:
                await self._stream.resume()

    async def _inject(self, said: str) -> None:
        index = await self._stream.inject(messages=[{"role": "user", "content": said}], at=self._view.index)
        self._look()
        self._view.mark(index, "interjection", said)
