"""The whole terminal, while streams are watched: a table that is drawn anew, and keys that sort it or leave.

It draws with the terminal's library, as `screen` does. Asking the server blocks, so a thread does that: one
that need not be waited for when the person leaves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import FormattedTextControl, HSplit, Layout
from prompt_toolkit.layout.containers import Window
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from midstream.cli.key_bindings import LEAVING, RUN, Intent, fitting
from midstream.cli.listing import Listing
from midstream.cli.streams_table import ORDERS, head, rows
from midstream.errors import MidstreamError

STYLE = Style.from_dict(
    {
        "head": "bold",
        "columns": "reverse",
        "running": "ansigreen",
        "paused": "ansiyellow",
        "stalled": "ansicyan",
        "queued": "ansimagenta",
        "state": "reverse",
        "help": "reverse dim",
    }
)
REFRESH_S = 1.0
HELP = ("q quit", *(f"{key} by {order.word}" for key, order in ORDERS.items()))


class Board:
    """Shows `first`, and what is asked for from then on, until the person leaves."""

    def __init__(
        self, first: Listing, ask: Callable[[], Listing], explain: Callable[[MidstreamError], str]
    ) -> None:
        self._listing = first
        self._ask = ask
        self._explain = explain
        self._problem: str | None = None
        self._order = ORDERS["r"]
        self._over = threading.Event()
        table = Window(FormattedTextControl(self._draw, show_cursor=False))
        bar = Window(FormattedTextControl(self._bar), height=1, style="class:state")
        self._application: Application[int] = Application(
            Layout(HSplit([table, bar])), key_bindings=self._bindings(), style=STYLE, full_screen=True
        )

    async def run(self) -> int:
        """The exit status."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._keep_asking, args=(loop,), daemon=True).start()
        try:
            return await self._application.run_async()
        finally:
            self._over.set()

    # -- in a thread of its own ------------------------------------------------------------------

    def _keep_asking(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._over.wait(REFRESH_S):
            try:
                told: Listing | str = self._ask()
            except MidstreamError as error:
                told = self._explain(error)
            if not self._over.is_set():
                loop.call_soon_threadsafe(self._hear, told)

    # -- in the event loop -----------------------------------------------------------------------

    def _hear(self, told: Listing | str) -> None:
        if isinstance(told, Listing):
            self._listing, self._problem = told, None
        else:
            self._problem = told
        self._application.invalidate()

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        def leave(key: str, wish: Intent) -> None:
            bindings.add(key)(lambda _: self._application.exit(result=LEAVING[wish]))

        def sort(key: str) -> None:
            bindings.add(key)(lambda _: self._sort(key))

        for key, wish in RUN.items():
            if wish in LEAVING:
                leave(key, wish)
        for key in ORDERS:
            sort(key)
        return bindings

    def _sort(self, key: str) -> None:
        self._order = ORDERS[key]

    def _draw(self) -> StyleAndTextTuples:
        room = self._application.output.get_size().rows - 1
        drawn: StyleAndTextTuples = []
        for line in head(self._listing):
            drawn.append(("class:head", f"{line}\n"))
        drawn.append(("", "\n"))
        room -= len(drawn)
        table = rows(self._listing.streams, self._order, get_cwidth)
        hidden = len(table) - room
        for row in table if hidden <= 0 else table[: max(room - 1, 0)]:
            drawn += [*((f"class:{style}", text) for style, text in row), ("", "\n")]
        if hidden > 0:
            drawn.append(("", f"… and {hidden + 1} more"))
        return drawn

    def _bar(self) -> StyleAndTextTuples:
        left = f"! {self._problem}" if self._problem else f"by {self._order.word}"
        width = self._application.output.get_size().columns
        return [("class:state", f" {left}"), ("class:help", fitting(left, HELP, width))]
