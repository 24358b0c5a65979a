"""The controller of one answer in a chat: its chunks go to the view, the person's intents to the stream.

Intents are carried out one after another, in the order of the keys, while reading goes on. It does not know
the terminal: it is given a way to ask for a line.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from textwrap import shorten

from midstream.agent import Run
from midstream.cli.answer_view import TEMPERATURE_STEP, AnswerView
from midstream.cli.key_bindings import Intent
from midstream.cli.sanitize import sanitize
from midstream.errors import ConnectionLost, MidstreamError, RequestError, RequestFinished
from midstream.protocol import Event, Snapshot, Token, ToolCallDone
from midstream.spans import Call
from midstream.stream_core import Chunk

SHOWN = 48  # characters of a call's arguments, where somebody is asked about it


class AnswerController:
    def __init__(
        self,
        run: Run,
        view: AnswerView,
        prompt: Callable[[str, str], Awaitable[str | None]],
        redraw: Callable[[], None],
    ) -> None:
        self._run = run
        self._stream = stream = run.stream
        self._view = view
        self._prompt = prompt
        self._redraw = redraw
        self._asking = asyncio.Lock()  # one question at a time
        self._calls: asyncio.Queue[str] = asyncio.Queue()  # that wait for a yes
        self._actions: dict[Intent, Callable[[], Awaitable[object]]] = {
            Intent.TOGGLE: self._toggle_pause,
            Intent.STOP: stream.cancel,
            Intent.RAISE_TEMPERATURE: lambda: self._change_temperature(TEMPERATURE_STEP),
            Intent.LOWER_TEMPERATURE: lambda: self._change_temperature(-TEMPERATURE_STEP),
            Intent.INTERJECT: self._interject,
            Intent.REWIND: self._rewind,
        }
        temperature = stream.params.temperature
        if isinstance(temperature, int | float):
            view.temperature, view.temperature_since = temperature, 0

    async def read(self) -> None:
        """Show the answer up to its end."""
        async for event in self._run:
            self._show(event)
            self._update_view()

    def _show(self, event: Event) -> None:
        match event:
            case Token(index=index, count=count, delta=delta):
                self._view.add_chunk(Chunk(index, count, delta), time.monotonic())
            case Snapshot(index=index, text=text):
                self._view.replace(index, text)
            case ToolCallDone(call_id=call_id, approval=True) if not self._run.agent.approve:
                self._calls.put_nowait(call_id)

    async def steer(self, intents: asyncio.Queue[Intent]) -> None:
        """Carry out intents for ever. What the server refuses is said; what comes too late is no matter."""
        while True:
            intent = await intents.get()
            await self._carry_out(self._actions[intent])

    async def approve(self) -> None:
        """Ask about the calls that wait for a yes, for ever."""
        while True:
            call_id = await self._calls.get()
            while (call := self._waits(call_id)) is not None:
                await self._carry_out(partial(self._ask, call))

    def _waits(self, call_id: str) -> Call | None:
        told = self._stream.final is not None or call_id in self._stream.channel.core.told
        calls = (call for call in self._stream.calls if call.call_id == call_id and call.approval)
        return None if told else next(calls, None)

    async def _ask(self, call: Call) -> None:
        async with self._asking:
            asked = sanitize(f"{call.name} {shorten(call.arguments, SHOWN, placeholder='…')}")
            said = await self._prompt(f"{asked}: y runs it, n does not, e edits ▸ ", "")
            edited = said in ("e", "E") and await self._prompt(f"{sanitize(call.name)} ▸ ", call.arguments)
        if edited:
            await self._run.amend(call, edited)
        elif said in ("y", "Y"):
            await self._run.approve(call)
        elif said in ("n", "N"):
            await self._run.refuse(call)

    async def _carry_out(self, action: Callable[[], Awaitable[object]]) -> None:
        self._view.error = None
        try:
            await action()
        except RequestFinished:
            pass
        except (RequestError, ConnectionLost) as refusal:  # reading finds out where all is lost
            self._view.error = sanitize(str(refusal))
        self._update_view()

    def _update_view(self) -> None:
        """Steering may have taken back what is shown; what stands and was read is known to the stream."""
        self._view.truncate(self._stream.consumed)
        self._view.thoughts, self._view.calls = self._stream.thoughts, self._stream.calls
        self._view.outcomes = self._run.outcomes
        self._view.set_paused(self._stream.pause_reason)
        self._view.ended = self._stream.final is not None
        self._redraw()

    @property
    def _waits_for_us(self) -> bool:
        return self._stream.pause_reason in ("client", "guard")

    async def _toggle_pause(self) -> None:
        await (self._stream.resume() if self._waits_for_us else self._stream.pause())

    async def _change_temperature(self, by: float) -> None:
        wanted = self._view.change_temperature(by)
        self._redraw()
        self._view.mark_temperature(await self._stream.adjust(temperature=wanted), wanted)

    async def _rewind(self) -> None:
        # Under the same seed the same words would come again: another one goes with it, at the same token.
        await self._stream.adjust(at=self._view.rewind_target(), seed=secrets.randbits(53))

    async def _interject(self) -> None:
        """Pause, ask, put it where the person has read to, and go on: also if nothing was said after all.
        Where this is cancelled the answer is left, or has ended, and nothing of it is waited for."""
        was_paused = self._waits_for_us
        if not was_paused:
            await self._stream.pause()
            self._update_view()
        async with self._asking:
            text = await self._prompt("interject ▸ ", "")
        try:
            if text:
                await self._inject(text)
        except MidstreamError:
            await self._go_on(was_paused)
            raise
        await self._go_on(was_paused)

    async def _go_on(self, was_paused: bool) -> None:
        if not was_paused:
            await self._stream.resume()

    async def _inject(self, text: str) -> None:
        index = await self._stream.inject(messages=[{"role": "user", "content": text}], at=self._view.index)
        self._update_view()
        self._view.add_mark(index, "interjection", text)
