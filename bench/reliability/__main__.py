"""`make reliability`: every experiment, one after the other; then one table and a JSON file.

`python -m bench.reliability [name ...] [--scale 0.01]` runs some of them, or less of each: with `deaths
--scale 0.1` a hundred engines are killed. `abuse --attack-s 2` has all attacks, each for two seconds,
and `abuse --attack "fork, all, 50"` one, on a server of its own. `stories --seed 40017` tells one of them
again, line by line, `records --seed 50017` plays one, and `growth --state calls` does all that may be done
to a stream with many calls. Seeds stand in the modules: the same command does the same again.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
import textwrap
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

EXPERIMENTS = (
    "conformance",
    "turns",
    "draws",
    "fuzz",
    "stories",
    "records",
    "growth",
    "accounts",
    "reading",
    "abuse",
    "deaths",
    "hangs",
    "fleet_deaths",
    "fleet_hangs",
    "ray",
    "bystanders",
    "gateway_deaths",
    "gateway_crowds",
    "restarts",
    "upgrades",
    "gateway_upgrades",
    "cuts",
    "readers",
    "connections",
    "handshakes",
    "poison",
    "grammars",
    "formats",
    "examples",
    "shortages",
    "drains",
    "soak",
)
# What may be asked of each beside.
OWN = {
    "abuse": ("attack_s", "attacks"),
    "stories": ("seeds",),
    "records": ("seeds",),
    "growth": ("states",),
    "accounts": ("states",),
}
MOST_S = 7200.0  # for one of them
RESULTS = Path("bench/results/reliability.json")  # and the table beside it
SAID = {"name", "goal", "met", "scale", "took_s"}  # what has a column of its own


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.reliability", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of each, from 0 to 1")
    parser.add_argument("--attack-s", type=float, help="seconds of each attack of `abuse`")
    parser.add_argument("--attack", action="append", dest="attacks", help="one of `abuse`, by itself")
    parser.add_argument(
        "--seed", type=int, action="append", dest="seeds", help="one of `stories` or `records`, aloud"
    )
    parser.add_argument(
        "--state", action="append", dest="states", help="one of `growth`, or of `accounts`, by itself"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(EXPERIMENTS):
        parser.error(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    found = {
        name: run(name, arguments.scale, asked_of(arguments, OWN.get(name, ())))
        for name in arguments.names or EXPERIMENTS
    }
    print(table(found.values()))
    return 0 if all(figures["met"] for figures in found.values()) else 1


def asked_of(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def run(name: str, scale: float, asked: dict[str, Any]) -> dict[str, Any]:
    """One experiment's figures; one that fails is short of its goal, and says why. `asked`: what is its own
    to be told."""
    print(f"running: {name}", file=sys.stderr, flush=True)
    module = importlib.import_module(f"bench.reliability.{name}")
    since = time.perf_counter()
    try:
        figures: dict[str, Any] = asyncio.run(asyncio.wait_for(module.measure(scale, **asked), MOST_S))
    except Exception as failure:  # noqa: BLE001 - the others are to be run all the same
        traceback.print_exception(failure)
        figures = {"name": name, "goal": "to be run to its end", "met": False, "failed": repr(failure)}
    figures |= {"scale": scale, "took_s": round(time.perf_counter() - since, 1)}
    write(name, figures)
    return figures


def write(name: str, figures: dict[str, Any]) -> None:
    """Beside what earlier runs found of other experiments."""
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[name] = figures
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    RESULTS.with_suffix(".txt").write_text(table(known.values()) + "\n")


def table(found: Iterable[dict[str, Any]]) -> str:
    lines = []
    for figures in found:
        verdict = "ok" if figures["met"] else "short"
        lines.append(f"{figures['name']}: {verdict} (at scale {figures['scale']:g}, {figures['took_s']:g} s)")
        lines.append(f"    goal:    {figures['goal']}")
        reached = "; ".join(f"{key}: {value}" for key, value in figures.items() if key not in SAID)
        lines += textwrap.wrap(reached, 110, initial_indent="    reached: ", subsequent_indent=" " * 13)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
