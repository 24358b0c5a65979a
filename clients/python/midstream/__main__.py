"""The command `midstream`: finds the subcommand, and gives it the rest of the line.

It belongs to the client, which is installed without the server and without a terminal's library. The server's
subcommands are entry points of its package, as plug-ins are; the library is looked for when it is needed.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points, version

from midstream.cli.first_process import end_when_told
from midstream.cli.standard_streams import prepare_standard_streams

INTERRUPTED = 130  # the exit status of a program that Ctrl-C has ended
SERVER_COMMANDS = "midstream.commands"  # the group of entry points in which the server names its subcommands
NO_SERVER = (
    "midstream: the server is not installed here; in a clone of Midstream, install it with: "
    "pip install ./clients/python ."
)
NO_TERMINAL_LIBRARY = (
    "midstream: this command needs a library for terminals; in a clone of Midstream, install it with: "
    "pip install './clients/python[cli]'"
)
COMMANDS = """
  serve   run the server
  engine  run a model for servers that connect
  fleet   keep engines on many machines, by Ray
  keys    add, list and revoke the keys that a server lets in
  chat    talk with a model, and steer its answers while they are written
  run     have a file of requests answered
  replay  play what was recorded again, and say whether the same comes
  top     watch which streams live
  models  say which models are loaded, load and unload them

`midstream command --help` lists the options of each."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(
        prog="midstream",
        usage="midstream [--version] command ...",
        description="Start a model's answer, and steer it while it is written.\n" + COMMANDS,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"midstream {version('midstream')}")
    parser.add_argument(
        "command",
        metavar="command",
        choices=["serve", "engine", "fleet", "keys", "chat", "run", "replay", "top", "models"],
        help="see above",
    )
    parser.add_argument("arguments", nargs=REMAINDER, help="the command's own")
    end_when_told()
    prepare_standard_streams()
    chosen = parser.parse_args(argv)
    commands = {"chat": chat, "run": run, "replay": replay, "top": top, "models": models}
    try:  # the server takes a while to import, too
        command = commands.get(chosen.command) or server_command(chosen.command)
        if command is not None:
            return command(chosen.arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    print(NO_SERVER, file=sys.stderr)
    return 1


def server_command(name: str) -> Callable[[Sequence[str]], int] | None:
    """One of the server's subcommands, where the server is installed."""
    found = entry_points(group=SERVER_COMMANDS, name=name)
    return next((entry_point.load() for entry_point in found), None)


def chat(argv: Sequence[str]) -> int:
    try:
        from midstream.cli.chat import main as chat_main
    except ModuleNotFoundError as missing:
        return without_library(missing)
    return chat_main(argv)


def run(argv: Sequence[str]) -> int:
    from midstream.cli.run import main as run_main

    try:
        return run_main(argv)
    except ModuleNotFoundError as missing:  # it is wanted at a terminal only
        return without_library(missing)


def replay(argv: Sequence[str]) -> int:
    from midstream.cli.replay import main as replay_main

    return replay_main(argv)


def top(argv: Sequence[str]) -> int:
    from midstream.cli.top import main as top_main

    try:
        return top_main(argv)
    except ModuleNotFoundError as missing:  # as above
        return without_library(missing)


def models(argv: Sequence[str]) -> int:
    from midstream.cli.models import main as models_main

    return models_main(argv)


def without_library(missing: ModuleNotFoundError) -> int:
    if (missing.name or "").partition(".")[0] != "prompt_toolkit":
        raise missing
    print(NO_TERMINAL_LIBRARY, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
