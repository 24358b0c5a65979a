"""The command `midstream models`: which models a server has and what is loaded; and, for an admin, to load,
unload and pin them."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from urllib.parse import quote

from msgspec import Struct

from midstream.cli.arguments import add_url, api_key
from midstream.cli.ask_server import ask_server
from midstream.cli.error_messages import error_message
from midstream.cli.exit_status import write_no_more
from midstream.cli.sanitize import sanitize
from midstream.errors import MidstreamError

ACTIONS = ("load", "unload", "pin", "unpin")
COLUMNS = ("NAME", "STATE", "PINNED", "CONTEXT", "ALIASES", "FINGERPRINT")


class Model(Struct):
    """A model as a server tells of it. Words that a newer server has are shown as they are."""

    id: str
    state: str
    context_length: int | None = None
    aliases: list[str] = []
    pinned: bool = False
    fingerprint: str | None = None

    @property
    def row(self) -> list[str]:
        return [
            sanitize(self.id),
            sanitize(self.state),
            "yes" if self.pinned else "no",
            "-" if self.context_length is None else str(self.context_length),
            sanitize(", ".join(self.aliases)) or "-",
            sanitize(self.fingerprint or "-"),
        ]


class _Models(Struct):
    data: list[Model]


class _Told(Struct):
    name: str
    state: str
    pinned: bool = False


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    url, key = arguments.url, api_key()
    try:
        if arguments.action == "list":
            models = ask_server(url, "/v1/models", key, _Models, about="list its models").data
            return _print(_table([list(COLUMNS), *(model.row for model in models)]))
        # What is no text goes as it is: the server says that there is no such model.
        path = f"/v1/models/{quote(arguments.name, safe='/', errors='surrogateescape')}"
        told = ask_server(url, path, key, _Told, {"do": arguments.action}, about="say what is loaded")
    except MidstreamError as error:
        print(f"midstream: {error_message(error, url)}", file=sys.stderr)
        return 1
    return _print([f"{sanitize(told.name)}: {sanitize(told.state)}{', pinned' if told.pinned else ''}"])


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="midstream models",
        description="Say which models a server has, and which are loaded; with an admin's key, change that.",
    )
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    add_url(actions.add_parser("list", help="all models, the default first"))
    for action, does in zip(
        ACTIONS,
        (
            "load it, as if somebody had asked for it",
            "unload it, as soon as what runs has ended",
            "load it, and keep it loaded",
            "have it unloaded when nobody needs it",
        ),
        strict=True,
    ):
        one = actions.add_parser(action, help=does)
        one.add_argument("name", help="the model's name, or an alias")
        add_url(one)
    return parser


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _print(lines: list[str]) -> int:
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        write_no_more()
        return 1
    return 0
