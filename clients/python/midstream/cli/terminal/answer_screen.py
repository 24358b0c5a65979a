"""The terminal while an answer is written: the answer's last rows, a line to ask in, and a status line.

The only module that draws with the terminal's library (`prompt_toolkit`, of the extra `cli`). Rows that no
longer fit are let go to the terminal's own history, where they can be scrolled to and copied; where those are
rewound, a note says so, and they are said again below it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from prompt_toolkit.application import Application, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText, StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import BufferControl, ConditionalContainer, FormattedTextControl, HSplit, Layout
from prompt_toolkit.layout.containers import Window
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.shortcuts import print_formatted_text
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from midstream.cli.answer_view import View
from midstream.cli.key_bindings import Intent, fitting
from midstream.cli.wrap import Cell, rows, runs

STYLE = Style.from_dict(
    {"note": "dim", "interjection": "bold", "problem": "bold", "state": "reverse", "help": "reverse dim"}
)
TAKEN_BACK = "⟨taken back; it goes on from here⟩"
_REDRAW_S = 0.03  # at most so often, however fast the tokens come
_REFRESH_S = 0.5  # the pace falls also while nothing comes
_ALWAYS = ("c-c", "<sigint>")  # these are heard while a line is typed, too


class Screen:
    """Shows a view, and passes on what the keys mean, until it is closed."""

    def __init__(
        self,
        view: View,
        table: Mapping[str, Intent],
        wanted: Callable[[Intent], None],
        status: Callable[[], tuple[str, tuple[str, ...]]],
    ) -> None:
        self._view = view
        self._status = status
        self._gone: list[list[Cell]] = []  # the rows that the terminal's history has
        self._letting_go: Awaitable[None] | None = None
        self._asked: asyncio.Future[str | None] | None = None
        self._question = ""
        self._line = Buffer(multiline=False, accept_handler=self._said)
        self._answer_window = Window(
            FormattedTextControl(self._draw, focusable=True, show_cursor=False), dont_extend_height=True
        )
        self._application: Application[None] = Application(
            layout=self._layout(),
            key_bindings=self._bindings(table, wanted),
            style=STYLE,
            erase_when_done=True,
            min_redraw_interval=_REDRAW_S,
            refresh_interval=_REFRESH_S,
        )
        self._application.ttimeoutlen = 0.05  # how long Escape is waited on, to know that it is no sequence

    @asynccontextmanager
    async def drawn(self) -> AsyncIterator[asyncio.Task[None]]:
        """Draw while the block runs; the answer's last rows are left standing. Yields what draws."""
        drawing = asyncio.create_task(self._application.run_async())
        await asyncio.sleep(0)  # it runs from its first turn on, and can be told to end
        try:
            yield drawing
        finally:
            self._answer(None)
            if self._application.is_running:
                self._application.exit()
            await drawing
            if self._letting_go is not None:
                await self._letting_go
            self._let_go(keep=0)

    def changed(self) -> None:
        """There is something new to be seen."""
        self._application.invalidate()

    async def ask(self, question: str) -> str | None:
        """A line from the person, or None if there is to be none."""
        self._question = question
        self._line.reset()
        self._asked = asyncio.get_running_loop().create_future()
        self._application.layout.focus(self._line)
        self.changed()
        return await self._asked

    # -- keys ------------------------------------------------------------------------------------------

    def _bindings(self, table: Mapping[str, Intent], wanted: Callable[[Intent], None]) -> KeyBindings:
        bindings = KeyBindings()
        reading = Condition(lambda: self._asked is None)

        def bind(key: str, wish: Intent) -> None:
            bindings.add(key, filter=True if key in _ALWAYS else reading)(lambda _: wanted(wish))

        for key, wish in table.items():
            for name in {key, key.upper() if len(key) == 1 else key}:
                bind(name, wish)

        @bindings.add("escape", filter=~reading)
        def _(_: KeyPressEvent) -> None:
            self._answer(None)

        return bindings

    def _said(self, line: Buffer) -> bool:
        self._answer(line.text.strip())
        return False

    def _answer(self, text: str | None) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_result(text)
            self._application.layout.focus(self._answer_window)

    # -- what is drawn ---------------------------------------------------------------------------------

    def _layout(self) -> Layout:
        line = BufferControl(
            self._line, input_processors=[BeforeInput(lambda: self._question, "class:interjection")]
        )
        asking = Condition(lambda: self._asked is not None)
        bar = Window(FormattedTextControl(self._bar), height=1, style="class:state")
        return Layout(
            HSplit([self._answer_window, ConditionalContainer(Window(line, height=1), asking), bar]),
            focused_element=self._answer_window,
        )

    def _bar(self) -> StyleAndTextTuples:
        left, help_ = self._status()
        width = self._application.output.get_size().columns
        return [("class:state", f" {left}"), ("class:help", fitting(left, help_, width))]

    @property
    def _room(self) -> int:
        return max(self._application.output.get_size().rows - 3, 1)

    def _draw(self) -> StyleAndTextTuples:
        standing = self._standing()
        if self._letting_go is None and (len(standing) > self._room or self._taken_back()):
            self._letting_go = run_in_terminal(lambda: self._let_go(self._room))
        drawn: StyleAndTextTuples = []
        for row in standing[-self._room :]:
            drawn += [*_styled(runs(row)), ("", "\n")]
        return drawn[:-1]

    def _standing(self) -> list[list[Cell]]:
        """The rows of the answer that are not in the terminal's history."""
        width = max(self._application.output.get_size().columns, 2)
        cells = self._cells()[sum(map(len, self._gone)) :]
        return rows(cells, width, get_cwidth)

    def _cells(self) -> list[Cell]:
        return [(style, letter) for style, text in self._view.segments() for letter in text]

    def _taken_back(self) -> bool:
        gone = [cell for row in self._gone for cell in row]
        return self._cells()[: len(gone)] != gone

    def _let_go(self, keep: int) -> None:
        """Print what no longer fits: the library clears the screen before, and draws again afterwards."""
        if self._taken_back():
            while self._gone and self._taken_back():
                self._gone.pop()
            say([("note", TAKEN_BACK)])
        standing = self._standing()
        over = standing[: max(len(standing) - keep, 0)]
        say(*over)
        self._gone += over
        self._letting_go = None


def say(*lines: list[Cell]) -> None:
    """Lines that stay in the terminal."""
    for line in lines:
        print_formatted_text(FormattedText(_styled(runs(line))), style=STYLE)


def _styled(pieces: list[tuple[str, str]]) -> StyleAndTextTuples:
    return [(f"class:{style}", text) for style, text in pieces]
