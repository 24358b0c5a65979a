"""The screen while an answer is written: the answer's last rows, an input line, and a status line.

The only module that draws with the terminal's library (`prompt_toolkit`, of the extra `cli`). Rows that no
longer fit are scrolled out to the terminal's own history, where they can be read and copied; where those are
rewound, a note says so, and they are printed again below it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from prompt_toolkit.application import Application, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText, StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import BufferControl, ConditionalContainer, FormattedTextControl, HSplit, Layout
from prompt_toolkit.layout.containers import Window
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.shortcuts import print_formatted_text
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from midstream.cli.answer_view import REWOUND, AnswerView
from midstream.cli.key_bindings import Intent, fit_help
from midstream.cli.wrap import Cell, runs, wrap

STYLE = Style.from_dict(
    {
        "note": "dim",
        "reasoning": "dim italic",
        "call": "ansicyan",
        "interjection": "bold",
        "error": "bold",
        "state": "reverse",
        "help": "reverse dim",
    }
)
_REDRAW_S = 0.03  # at most so often, however fast the tokens come
_REFRESH_S = 0.5  # the rate falls also while nothing comes
_ALWAYS = ("c-c", "<sigint>")  # these work while a line is typed, too


class AnswerScreen:
    """Shows a view, and passes on what the keys mean, until it is closed."""

    def __init__(
        self,
        view: AnswerView,
        keys: Mapping[str, Intent],
        on_intent: Callable[[Intent], None],
        status: Callable[[], tuple[str, tuple[str, ...]]],
    ) -> None:
        self._view = view
        self._status = status
        self._scrolled: list[list[Cell]] = []  # the rows that the terminal's history has
        self._scrolling: Awaitable[None] | None = None
        self._reply: asyncio.Future[str | None] | None = None
        self._question = ""
        self._input = Buffer(multiline=False, accept_handler=self._accept)
        self._answer_window = Window(
            FormattedTextControl(self._draw, focusable=True, show_cursor=False), dont_extend_height=True
        )
        self._application: Application[None] = Application(
            layout=self._layout(),
            key_bindings=self._bindings(keys, on_intent),
            style=STYLE,
            erase_when_done=True,
            min_redraw_interval=_REDRAW_S,
            refresh_interval=_REFRESH_S,
        )
        self._application.ttimeoutlen = 0.05  # how long Escape is waited on, to know that it is no sequence

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Draw while the block runs; the answer's last rows are left standing. Yields what draws."""
        drawing = asyncio.create_task(self._application.run_async())
        await asyncio.sleep(0)  # it runs from its first turn on, and can be told to end
        try:
            yield drawing
        finally:
            self._resolve(None)
            if self._application.is_running:
                self._application.exit()
            await drawing
            if self._scrolling is not None:
                await self._scrolling
            self._scroll_out(keep=0)

    def redraw(self) -> None:
        """The view has changed."""
        self._application.invalidate()

    async def prompt(self, question: str, text: str) -> str | None:
        """A line from the person, who finds this text in it; or None if there is to be none."""
        self._question = question
        self._input.reset(Document(text))
        self._reply = asyncio.get_running_loop().create_future()
        self._application.layout.focus(self._input)
        self.redraw()
        return await self._reply

    # -- keys ------------------------------------------------------------------------------------------

    def _bindings(self, keys: Mapping[str, Intent], on_intent: Callable[[Intent], None]) -> KeyBindings:
        bindings = KeyBindings()
        reading = Condition(lambda: self._reply is None)

        def bind(key: str, intent: Intent) -> None:
            bindings.add(key, filter=True if key in _ALWAYS else reading)(lambda _: on_intent(intent))

        for key, intent in keys.items():
            for name in {key, key.upper() if len(key) == 1 else key}:
                bind(name, intent)

        @bindings.add("escape", filter=~reading)
        def _(_: KeyPressEvent) -> None:
            self._resolve(None)

        return bindings

    def _accept(self, line: Buffer) -> bool:
        self._resolve(line.text.strip())
        return False

    def _resolve(self, text: str | None) -> None:
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done():
            reply.set_result(text)
            self._application.layout.focus(self._answer_window)

    # -- what is drawn ---------------------------------------------------------------------------------

    def _layout(self) -> Layout:
        line = BufferControl(
            self._input, input_processors=[BeforeInput(lambda: self._question, "class:interjection")]
        )
        asking = Condition(lambda: self._reply is not None)
        bar = Window(FormattedTextControl(self._bar), height=1, style="class:state")
        return Layout(
            HSplit([self._answer_window, ConditionalContainer(Window(line, height=1), asking), bar]),
            focused_element=self._answer_window,
        )

    def _bar(self) -> StyleAndTextTuples:
        left, help_ = self._status()
        width = self._application.output.get_size().columns
        return [("class:state", f" {left}"), ("class:help", fit_help(left, help_, width))]

    @property
    def _height(self) -> int:
        return max(self._application.output.get_size().rows - 3, 1)

    def _draw(self) -> StyleAndTextTuples:
        rows = self._unscrolled_rows()
        if self._scrolling is None and (len(rows) > self._height or self._is_rewound()):
            self._scrolling = run_in_terminal(lambda: self._scroll_out(self._height))
        drawn: StyleAndTextTuples = []
        for row in rows[-self._height :]:
            drawn += [*_styled(runs(row)), ("", "\n")]
        return drawn[:-1]

    def _unscrolled_rows(self) -> list[list[Cell]]:
        """The rows of the answer that are not in the terminal's history."""
        width = max(self._application.output.get_size().columns, 2)
        cells = self._cells()[sum(map(len, self._scrolled)) :]
        return wrap(cells, width, get_cwidth)

    def _cells(self) -> list[Cell]:
        return [(style, letter) for style, text in self._view.segments() for letter in text]

    def _is_rewound(self) -> bool:
        scrolled = [cell for row in self._scrolled for cell in row]
        return self._cells()[: len(scrolled)] != scrolled

    def _scroll_out(self, keep: int) -> None:
        """Print what no longer fits: the library clears the screen before, and draws again afterwards."""
        if self._is_rewound():
            while self._scrolled and self._is_rewound():
                self._scrolled.pop()
            print_lines([("note", REWOUND)])
        rows = self._unscrolled_rows()
        over = rows[: max(len(rows) - keep, 0)]
        print_lines(*over)
        self._scrolled += over
        self._scrolling = None


def print_lines(*lines: list[Cell]) -> None:
    """Lines that stay in the terminal."""
    for line in lines:
        print_formatted_text(FormattedText(_styled(runs(line))), style=STYLE)


def _styled(pieces: list[tuple[str, str]]) -> StyleAndTextTuples:
    return [(f"class:{style}", text) for style, text in pieces]
