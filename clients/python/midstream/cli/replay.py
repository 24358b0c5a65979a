"""The command `midstream replay`: what was recorded is played again, and compared token by token.

The exit status is that of `diff`: 0 for the same, 1 for a difference, 2 where there is nothing to compare.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

import midstream
from midstream.cli.arguments import add_url, api_key
from midstream.cli.error_messages import error_message
from midstream.cli.exit_status import exit_status
from midstream.cli.replay_report import report, title
from midstream.errors import MidstreamError
from midstream.record_format import Record, RecordError, parse_records
from midstream.recording import read_records

TROUBLE = 2


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    return exit_status(
        lambda: asyncio.run(_replay(arguments, _records(arguments.file))),
        file=arguments.file,
        wrong_file=RecordError,
        url=arguments.url,
        trouble=TROUBLE,
    )


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="midstream replay",
        description="Play what was recorded again, every control at the same token, and compare.",
        epilog="The exit status is 0 if the same tokens came, 1 if others did, and 2 if it cannot be played.",
    )
    add_url(parser)
    parser.add_argument(
        "file", metavar="FILE", help="as `midstream run --record` wrote it; - reads standard input"
    )
    return parser


def _records(file: str) -> list[Record]:
    if file != "-":
        return read_records(file)
    try:
        return parse_records(sys.stdin.read())
    except UnicodeDecodeError as error:
        raise RecordError(f"byte {error.start} is not UTF-8") from None


async def _replay(arguments: Namespace, records: list[Record]) -> int:
    """One after the other, each told as soon as it is known: the exit status."""
    statuses = []
    async with midstream.connect(arguments.url, api_key=api_key()) as client:
        for record in records:
            print(title(record), flush=True)
            try:
                replay = await client.replay(record)
            except midstream.ConnectionLost:
                raise
            except MidstreamError as error:
                lines, status = [f"not replayed: {error_message(error, arguments.url)}"], TROUBLE
            else:
                lines, status = report(replay), int(not replay.equal)
            print(*(f"  {line}" for line in lines), sep="\n", flush=True)
            statuses.append(status)
    return max(statuses)
