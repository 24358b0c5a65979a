"""The command `midstream`: finds the subcommand, and gives it the rest of the line.

It belongs to the client, which is installed without the server: `serve` looks for the server when asked for.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from importlib.metadata import version

NO_SERVER = "midstream: the server is not installed here; install it with: pip install midstream-server"


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(
        prog="midstream", description="Start a model's answer, and steer it while it is written."
    )
    parser.add_argument("--version", action="version", version=f"midstream {version('midstream')}")
    parser.add_argument(
        "command", choices=["serve"], help="serve: run the server; `serve --help` lists its options"
    )
    parser.add_argument("arguments", nargs=REMAINDER, help="the command's own")
    return serve(parser.parse_args(argv).arguments)


def serve(argv: Sequence[str]) -> int:
    try:
        from realtime.__main__ import main as run
    except ModuleNotFoundError as missing:
        if missing.name not in ("realtime", "realtime.__main__"):
            raise
        print(NO_SERVER, file=sys.stderr)
        return 1
    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
