"""The command `midstream fleet`: brings up, shows, scales, replaces and ends the engines and gateways
that Ray keeps."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from keeper.plan import MOST_ENGINES, Plan, PlanError, Range, counted, gateway_options, planned
from realtime.config import HOST_AND_PORT, Options, parse
from realtime.fleet.models_file import entries
from realtime.fleet.place import NEEDS_RAY, PlaceError
from realtime.fleet.watched_engine import EngineFailed

if TYPE_CHECKING:
    from keeper.ledger import Ledger


RAY = "MIDSTREAM_RAY"
MOST_MACHINES = 16  # for trying
MOST_CPUS = 16  # of each
ANY_MACHINE = "0.0.0.0"  # not loopback: others come
TRIAL = """\
{machines} of Ray's, each of {cpus}, are here for trying. In another terminal:

  export MIDSTREAM_RAY={address}
  midstream fleet up --models models.toml --token-file token
  midstream serve --fleet ray --engine-token-file token

Ctrl-C ends them, and all engines there."""


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    parser = _parser(environ)
    arguments = parser.parse_args(argv)
    tries = arguments.command == "try"
    if not tries and not arguments.ray:
        parser.error(f"no Ray was named: say --ray HOST:PORT, or set {RAY}")
    if find_spec("ray") is None:
        return _said(f"`midstream fleet` {NEEDS_RAY}")
    if tries:
        return _try(arguments.machines, arguments.cpus)
    # It brings Ray: only for whoever keeps a fleet.
    from keeper.ledger import Ledger, LedgerError

    try:
        wanted = _wanted(arguments) if arguments.command == "up" else None
        ledger = Ledger(arguments.ray)
        return _status(ledger) if arguments.command == "status" else _change(arguments, wanted, ledger)
    except (PlanError, PlaceError, LedgerError, EngineFailed) as problem:
        return _said(str(problem))


def _said(problem: str) -> int:
    print(f"midstream: {problem}", file=sys.stderr)
    return 1


def _try(machines: int, cpus: int) -> int:
    """Until somebody ends it."""
    from keeper.trial_machines import TrialMachines

    trial = TrialMachines(machines, cpus)
    heard, told = os.pipe()
    os.set_blocking(told, False)
    # A handler that writes would be run by Python when the wait is over, where the signal came just before
    # it; and a lock could be held by the very handler that a second signal interrupts.
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):  # not before: Ray has a way of its own with the second
        signal.signal(number, lambda *_: None)
    print(
        TRIAL.format(machines=counted(machines, "machine"), cpus=counted(cpus, "CPU"), address=trial.address),
        flush=True,
    )
    os.read(heard, 1)
    trial.end()
    return 0


def _status(ledger: Ledger) -> int:
    """1 where the fleet is not whole."""
    from keeper.status import Seen

    plan = ledger.plan()
    if plan is None:
        raise PlanError("there is no fleet here yet: `midstream fleet up` brings one up")
    seen = Seen(plan, ledger.machines(), ledger.placed(), ledger.kept())
    print("\n".join(seen.lines()))
    return 0 if seen.is_whole else 1


def _wanted(arguments: Namespace) -> Plan:
    """By whoever says `up`. Raises PlanError, PlaceError or EngineFailed."""
    # They bring links and all that those say: only for whoever asks what models are.
    from realtime.fleet.outlines import outlines
    from realtime.fleet.places import engine_options, token_in

    token = token_in(arguments.token_file)
    if not token:
        raise PlaceError(f"the file {arguments.token_file} holds no token")
    if arguments.gateways is not None:
        # It says what is wrong with them, and ends; a machine would say it again and again.
        parse(gateway_options(ANY_MACHINE, arguments.serve, arguments.ray, arguments.token_file), {})
    elif arguments.serve:
        raise PlanError(f"{shlex.join(arguments.serve)} is for gateways: say how many, by --gateways N")
    models = entries(Options(models=arguments.models))
    made_by = {entry.name: engine_options(entry.options) for entry in models}
    plan = planned(models, asyncio.run(outlines(made_by)), token)
    return plan if arguments.gateways is None else plan.with_gateways(arguments.gateways, arguments.serve)


def _change(arguments: Namespace, wanted: Plan | None, ledger: Ledger) -> int:
    """As `up` wants it, or as the other commands say."""
    from keeper.fleet import Fleet
    from keeper.ray_cluster import driver_of

    with driver_of(arguments.ray, f"`midstream fleet {arguments.command}`") as cluster:
        fleet = Fleet(cluster, ledger, lambda line: print(line, flush=True))
        cluster.rest(rests=True)  # it would have its own mind meanwhile
        cluster.free_what_nobody_has()
        match arguments.command:
            case "roll":
                fleet.roll(arguments.models, begun=lambda: cluster.rest(rests=False))
            case "down":
                cluster.scale(scales=False)
                fleet.down()
            case _:
                plan = (
                    fleet.plan().rolled([]).ranged(dict(arguments.engines))
                    if wanted is None
                    else wanted.going_on_from(ledger.plan())
                )
                fleet.follow(plan)
                cluster.scale(scales=any(model.scales for model in plan.models.values()))
    return 0


def _parser(environ: Mapping[str, str]) -> ArgumentParser:
    parser = ArgumentParser(
        prog="midstream fleet",
        description="Engines, and gateways, on many machines, kept there by Ray.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    up = commands.add_parser("up", help="bring up what a file of models says, or change it to that")
    up.add_argument("--models", required=True, metavar="FILE", help="file of models; see docs/operations.md")
    up.add_argument(
        "--token-file", required=True, metavar="FILE", help="file of the token that gateways must show"
    )
    up.add_argument(
        "--gateways",
        type=_count(MOST_ENGINES),
        metavar="N",
        help="have so many gateways beside them, each on a machine",
    )
    up.add_argument(
        "serve", nargs="*", metavar="-- OPTION", help="what `midstream serve` is to be told there"
    )
    commands.add_parser("status", help="show machines and engines; the exit status is 1 where any is missing")
    scale = commands.add_parser(
        "scale", help="have so many engines of a model, or as many as it takes from N to M"
    )
    scale.add_argument("engines", nargs="+", type=_range, metavar="MODEL=N[..M]")
    roll = commands.add_parser("roll", help="replace engines one by one; their streams go on at the others")
    roll.add_argument("models", nargs="*", metavar="MODEL", help="whose; else all")
    commands.add_parser("down", help="end all of them")
    for command in commands.choices.values():
        command.add_argument(
            "--ray",
            type=_address,
            default=environ.get(RAY) or _ray_of_job(environ),
            metavar="HOST:PORT",
            help=f"address of Ray's GCS, as `ray start --head` tells it [{RAY}; in a job of Ray's its]",
        )
    trial = commands.add_parser("try", help="have Ray's machines here, for trying, until Ctrl-C")
    trial.add_argument(
        "--machines",
        type=_count(MOST_MACHINES),
        default=3,
        metavar="N",
        help=f"how many, {MOST_MACHINES} at most [3]",
    )
    trial.add_argument(
        "--cpus", type=_count(MOST_CPUS), default=2, metavar="N", help="that each says it has [2]"
    )
    return parser


def _ray_of_job(environ: Mapping[str, str]) -> str | None:
    """As Ray tells its jobs; others' `RAY_ADDRESS` may be another kind of address."""
    address = environ.get("RAY_ADDRESS", "")
    return address if re.fullmatch(HOST_AND_PORT, address) else None


def _count(most: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if re.fullmatch(r"\d{1,4}", text) and 0 < int(text) <= most:
            return int(text)
        raise ArgumentTypeError(f"{text!r} is none; it must be a number from 1 to {most}")

    return count


def _range(text: str) -> tuple[str, Range]:
    model, _, numbers = text.rpartition("=")
    least, _, most = numbers.partition("..") if ".." in numbers else (numbers, "", numbers)
    if model and re.fullmatch(r"\d{1,4}", least) and re.fullmatch(r"\d{1,4}", most):
        engines = Range(int(least), int(most))
        if (engines.least or not engines.most) and engines.least <= engines.most <= MOST_ENGINES:
            return model, engines
    raise ArgumentTypeError(
        f"{text!r} is none; it must be MODEL=N, with N from 0 to {MOST_ENGINES}, or MODEL=N..M, with N from 1"
        " to M"
    )


def _address(text: str) -> str:
    if not re.fullmatch(HOST_AND_PORT, text):
        raise ArgumentTypeError(f"{text!r} is no address; it must be HOST:PORT, such as 10.0.0.7:6379")
    return text


if __name__ == "__main__":
    sys.exit(main())
