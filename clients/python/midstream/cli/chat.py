"""The command `midstream chat`: a conversation in which every answer can be steered while it is written.

Each answer has a connection of its own, so that a server that was started again between two of them is no
matter.
"""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText

import midstream
from midstream.cli.answer_controller import AnswerController
from midstream.cli.answer_view import AnswerView, status_line
from midstream.cli.arguments import add_sampling, add_url, api_key, sampling
from midstream.cli.error_messages import error_message
from midstream.cli.first_of import first_of
from midstream.cli.key_bindings import CHAT_HELP, CHAT_KEYS, EXIT_STATUS, Intent, chat_help
from midstream.cli.sanitize import sanitize
from midstream.cli.summary import summary
from midstream.cli.terminal.answer_screen import STYLE, AnswerScreen, print_lines
from midstream.cli.tool_functions import NotFound, load_agent, load_tool
from midstream.errors import MidstreamError
from midstream.options import StartOptions
from midstream.protocol import Message

T = TypeVar("T")

NO_TERMINAL = "midstream: chat needs a terminal; for files and pipes there is `midstream run`"


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(NO_TERMINAL, file=sys.stderr)
        return 2
    try:
        return asyncio.run(Chat(arguments).run())
    except (MidstreamError, ValueError) as error:
        print(f"midstream: {error_message(error, arguments.url)}", file=sys.stderr)
        return 1
    except EOFError:  # the terminal went away
        return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="midstream chat",
        description="Talk with a model, and steer its answers while they are written.",
        epilog=f"While an answer is written: {', '.join(CHAT_HELP)}. At the prompt, Ctrl-D quits.",
    )
    add_url(parser)
    parser.add_argument("--model", metavar="NAME", help="which of the models that are served")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    add_sampling(parser)
    tools = parser.add_mutually_exclusive_group()
    tools.add_argument(
        "--agent",
        type=_found_by(load_agent),
        metavar="FILE.py",
        help="the midstream.Agent that a Python file defines as `agent`: its tools and its system message",
    )
    tools.add_argument(
        "--tool",
        type=_found_by(load_tool),
        action="append",
        default=[],
        metavar="FILE.py:FUNCTION",
        help="a Python function that the model may call, by its file or module; may be given again",
    )
    return parser


def _found_by(load: Callable[[str], T]) -> Callable[[str], T]:
    """For argparse, which tells why it is not there."""

    def found(place: str) -> T:
        try:
            return load(place)
        except NotFound as error:
            raise ArgumentTypeError(str(error)) from None

    return found


class Quit(Exception):
    """The person wants to go."""

    def __init__(self, code: int) -> None:
        self.code = code


class Chat:
    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments
        model = {"model": arguments.model} if arguments.model else {}
        self._options = cast(StartOptions, {**model, **sampling(arguments)})
        self._agent = arguments.agent or midstream.Agent(tools=arguments.tool)
        self._prompt: PromptSession[str] = PromptSession()
        self._history: list[Message] = []
        if arguments.system:
            self._history.append(Message(role="system", content=arguments.system))

    def _connect(self, view: AnswerView) -> midstream.client.connect:
        def on_state(state: str) -> None:
            view.disconnected = state == "reconnecting"

        return midstream.connect(self._arguments.url, api_key=api_key(), on_state=on_state)

    async def run(self) -> int:
        """Talk until the person leaves: the exit status."""
        async with self._connect(AnswerView()) as client:
            model = self._arguments.model or ", ".join(client.ready.models)
        title = f"{sanitize(model)} at {self._arguments.url}; Ctrl-D quits. While an answer is written:"
        print_lines([("note", title)], [("note", " · ".join(CHAT_HELP))])
        while True:
            try:
                await self._turn(await self._read_input())
            except Quit as quit_:
                return quit_.code
            except MidstreamError as error:
                print_lines([("error", error_message(error, self._arguments.url))])

    async def _read_input(self) -> str:
        """What the person says next."""
        text = ""
        try:
            while not text:
                mark = FormattedText([("class:interjection", "\n▸ ")])
                text = (await self._prompt.prompt_async(mark, style=STYLE)).strip()
        except EOFError:
            raise Quit(EXIT_STATUS[Intent.QUIT]) from None
        except KeyboardInterrupt:
            raise Quit(EXIT_STATUS[Intent.INTERRUPT]) from None
        print()
        return text

    async def _turn(self, text: str) -> None:
        """One question and its answer, with whatever tools are called for it."""
        question = [*self._history, Message(role="user", content=text)]
        view = AnswerView()
        async with (
            self._connect(view) as client,
            await client.run(self._agent, question, **self._options) as run,
        ):
            try:
                await self._show(run, view)
            finally:
                if view.text or view.calls:
                    self._history = run.messages
        final = run.stream.final
        assert final is not None  # leaving the run's block has waited for it
        print_lines([("note", summary(final))])

    async def _show(self, run: midstream.Run, view: AnswerView) -> None:
        """Draw, read and carry out intents, all at once, until the answer ends or the person leaves."""
        intents: asyncio.Queue[Intent] = asyncio.Queue()
        leaving: asyncio.Future[Intent] = asyncio.get_running_loop().create_future()

        def on_intent(intent: Intent) -> None:
            if intent not in EXIT_STATUS:
                intents.put_nowait(intent)
            elif not leaving.done():
                leaving.set_result(intent)  # this one waits behind no other

        screen = AnswerScreen(
            view, CHAT_KEYS, on_intent, lambda: (status_line(view, time.monotonic()), chat_help(view.state))
        )
        controller = AnswerController(run, view, screen.prompt, screen.redraw)
        async with screen.running() as drawing:
            await first_of(
                controller.read(), controller.steer(intents), controller.approve(), also=(leaving, drawing)
            )
        if leaving.done():
            raise Quit(EXIT_STATUS[leaving.result()])
