"""`midstream top`: which streams live, what each has and what holds it up, drawn anew every second.

In a pipe it is said once, and in plain text.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from midstream.cli.arguments import add_url, api_key
from midstream.cli.error_messages import sentence
from midstream.cli.listing import Listing, ask
from midstream.cli.streams_table import ORDERS, head, rows
from midstream.errors import MidstreamError


def main(argv: Sequence[str]) -> int:
    url, key = _parser().parse_args(argv).url, api_key()
    try:
        first = ask(url, key)
    except MidstreamError as error:
        print(f"midstream: {sentence(error, url)}", file=sys.stderr)
        return 1
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _say(first)
    from midstream.cli.terminal.streams_screen import (
        Board,  # brings a library that is wanted at a terminal only
    )

    try:
        return asyncio.run(Board(first, lambda: ask(url, key), lambda error: sentence(error, url)).run())
    except EOFError:  # the terminal went away
        return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="midstream top",
        description="Watch which streams live: your own, or with an admin's key all of them and the server.",
        epilog="Keys: q quits; r, t, c and a sort by rate, tokens, context and age.",
    )
    add_url(parser)
    return parser


def _say(listing: Listing) -> int:
    table = ["".join(text for _, text in row).rstrip() for row in rows(listing.streams, ORDERS["r"], len)]
    try:
        print(*head(listing), *table, sep="\n", flush=True)
    except BrokenPipeError:  # whoever read our output has enough: so nothing more is written, at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
