"""The command `midstream top`: the live streams, what each has and what holds it up, drawn every second.

In a pipe it is printed once, and in plain text.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial

from midstream.cli.arguments import add_url, api_key
from midstream.cli.error_messages import error_message
from midstream.cli.exit_status import write_no_more
from midstream.cli.listing import Listing, fetch_listing
from midstream.cli.streams_table import ORDERS, header_lines, table_rows
from midstream.errors import MidstreamError


def main(argv: Sequence[str]) -> int:
    url, key = _parser().parse_args(argv).url, api_key()
    try:
        first = fetch_listing(url, key)
    except MidstreamError as error:
        print(f"midstream: {error_message(error, url)}", file=sys.stderr)
        return 1
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _print(first)
    from midstream.cli.terminal.streams_screen import StreamsScreen  # a terminal's library comes with it

    try:
        fetch, explain = partial(fetch_listing, url, key), partial(error_message, url=url)
        return asyncio.run(StreamsScreen(first, fetch, explain).run())
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


def _print(listing: Listing) -> int:
    rows = table_rows(listing.streams, ORDERS["r"], len)
    table = ["".join(text for _, text in row).rstrip() for row in rows]
    try:
        print(*header_lines(listing), *table, sep="\n", flush=True)
    except BrokenPipeError:
        write_no_more()
        return 1
    return 0
