"""The benchmark command, `make bench`: all measurements, each in a process of its own, one after the other;
then one table and a JSON file. `python -m bench [name ...]` makes some of them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import msgspec

from bench.result_tables import Figure, table, write

MEASUREMENTS = (
    "gateway",
    "metrics_overhead",
    "fleet_links",
    "fleet_size",
    "routing",
    "control",
    "steering",
    "endpoints",
    "schedule",
    "blocks",
    "sampling",
    "decode",
    "used_cache",
    "drafts",
    "perplexity",
    "structure",
    "agents",
    "guards",
    "exact",
    "memory",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(MEASUREMENTS)}")
    names = parser.parse_args().names
    if unknown := set(names) - set(MEASUREMENTS):
        parser.error(f"no measurement {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    figures: list[Figure] = []
    for name in names or MEASUREMENTS:
        print(f"measuring: {name}", file=sys.stderr)
        done = subprocess.run([sys.executable, "-m", f"bench.{name}"], stdout=subprocess.PIPE, check=True)
        figures += msgspec.json.decode(done.stdout.splitlines()[-1], type=list[Figure])
    path = write(figures, Path("bench/results"))
    print(table(figures))
    print(f"\nwritten to {path}")
    return 0


def report(figures: list[Figure]) -> int:
    """Print the figures of a measurement for the process above it."""
    print(msgspec.json.encode(figures).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
