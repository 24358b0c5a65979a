"""The full-screen table of `midstream top`: drawn anew every second, with keys that sort it or leave.

It draws with the terminal's library, as `answer_screen` does. Asking the server blocks, so a thread does
that: one that need not be waited for when the person leaves.
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

from midstream.cli.key_bindings import EXIT_STATUS, RUN_KEYS, Intent, fit_help
from midstream.cli.listing import Listing
from midstream.cli.streams_table import ORDERS, header_lines, table_rows
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
HELP = ("q quit", *(f"{key} by {order.label}" for key, order in ORDERS.items()))


class StreamsScreen:
    """Shows `first`, and what is fetched from then on, until the person leaves."""

    def __init__(
        self, first: Listing, fetch: Callable[[], Listing], error_message: Callable[[MidstreamError], str]
    ) -> None:
        self._listing = first
        self._fetch = fetch
        self._error_message = error_message
        self._error: str | None = None
        self._order = ORDERS["r"]
        self._closed = threading.Event()
        table = Window(FormattedTextControl(self._draw, show_cursor=False))
        bar = Window(FormattedTextControl(self._bar), height=1, style="class:state")
        self._application: Application[int] = Application(
            Layout(HSplit([table, bar])), key_bindings=self._bindings(), style=STYLE, full_screen=True
        )

    async def run(self) -> int:
        """The exit status."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._poll, args=(loop,), daemon=True).start()
        try:
            return await self._application.run_async()
        finally:
            self._closed.set()

    # -- in a thread of its own ------------------------------------------------------------------

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closed.wait(REFRESH_S):
            try:
                result: Listing | str = self._fetch()
            except MidstreamError as error:
                result = self._error_message(error)
            if not self._closed.is_set():
                loop.call_soon_threadsafe(self._receive, result)

    # -- in the event loop -----------------------------------------------------------------------

    def _receive(self, result: Listing | str) -> None:
        if isinstance(result, Listing):
            self._listing, self._error = result, None
        else:
            self._error = result
        self._application.invalidate()

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        def leave(key: str, intent: Intent) -> None:
            bindings.add(key)(lambda _: self._application.exit(result=EXIT_STATUS[intent]))

        def sort(key: str) -> None:
            bindings.add(key)(lambda _: self._sort(key))

        for key, intent in RUN_KEYS.items():
            if intent in EXIT_STATUS:
                leave(key, intent)
        for key in ORDERS:
            sort(key)
        return bindings

    def _sort(self, key: str) -> None:
        self._order = ORDERS[key]

    def _draw(self) -> StyleAndTextTuples:
        room = self._application.output.get_size().rows - 1
        drawn: StyleAndTextTuples = []
        for line in header_lines(self._listing):
            drawn.append(("class:head", f"{line}\n"))
        drawn.append(("", "\n"))
        room -= len(drawn)
        table = table_rows(self._listing.streams, self._order, get_cwidth)
        hidden = len(table) - room
        for row in table if hidden <= 0 else table[: max(room - 1, 0)]:
            drawn += [*((f"class:{style}", text) for style, text in row), ("", "\n")]
        if hidden > 0:
            drawn.append(("", f"… and {hidden + 1} more"))
        return drawn

    def _bar(self) -> StyleAndTextTuples:
        left = f"! {self._error}" if self._error else f"by {self._order.label}"
        width = self._application.output.get_size().columns
        return [("class:state", f" {left}"), ("class:help", fit_help(left, HELP, width))]
