"""`make bench-fleet`: an answer is read as it is written, the process that writes it is killed, and the same
is asked again; here and behind routers by others, one table.

`python -m bench.fleet [name ...]` has some of them. Who writes is seen by the processor time that it takes.
Others are installed into `.venv/bench-fleet`; one that cannot be had, or does not start, is named beneath.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2

from bench.fleet.contestants import ALL, Serving, until

TOKENS, KILL_AFTER, TIMES = 120, 60, 3
BODY = {"model": "toy", "prompt": "Once upon a time", "max_tokens": TOKENS, "stream": True}
BODY |= {"temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
SHORT = {"max_tokens": 2, "stream": False, "stream_options": None}
MOST_S = 60.0


@dataclass
class Seen:
    tokens: int  # of the answer, that came
    how: str  # it ended
    gap_s: float  # the longest between two of them behind the blow
    next_status: str  # of the same request, asked at once
    next_s: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(ALL)}")
    names = parser.parse_args().names or list(ALL)
    if unknown := set(names) - set(ALL):
        parser.error(f"no contestant {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    seen, missing = dict[str, list[Seen]](), dict[str, str]()
    for name in names:
        for time_of in range(TIMES):
            print(f"{name}: {time_of + 1} of {TIMES}", file=sys.stderr, flush=True)
            try:
                with ALL[name]() as serving:
                    seen.setdefault(name, []).append(struck(serving))
            except Exception as failure:  # noqa: BLE001 - the others are to be seen all the same
                missing[name] = repr(failure)
                break
    print(table(seen))
    for name, why in missing.items():
        print(f"left out: {name}: {why}")
    return 0


def struck(serving: Serving) -> Seen:
    with httpx2.Client(base_url=serving.url, timeout=MOST_S) as client:
        until(lambda: client.post("/v1/completions", json=BODY | SHORT).status_code == 200)
        times, tokens, how = read(client, serving)
        since = time.perf_counter()
        try:
            with client.stream("POST", "/v1/completions", json=BODY) as answer:
                status = str(answer.status_code)
                for _ in answer.iter_lines():
                    break
        except httpx2.HTTPError as error:
            status = type(error).__name__
        next_s = time.perf_counter() - since
    behind = times[KILL_AFTER - 1 :]
    gaps = [after - before for before, after in itertools.pairwise(behind)]
    return Seen(tokens, how, max(gaps, default=0.0), status, next_s)


def read(client: httpx2.Client, serving: Serving) -> tuple[list[float], int, str]:
    """When each piece came, how many tokens did, and how it ended."""
    times, tokens = list[float](), 0
    before = dict[int, int]()
    try:
        with client.stream("POST", "/v1/completions", json=BODY) as answer:
            for line in answer.iter_lines():
                if '"error"' in line:
                    return times, tokens, "error"
                told = json.loads(line[6:]) if line.startswith("data: {") else {}
                if told.get("usage"):  # several tokens may have come in one piece
                    tokens = told["usage"]["completion_tokens"]
                if any(choice.get("text") for choice in told.get("choices", ())):
                    times.append(time.perf_counter())
                    tokens += 1
                    if len(times) == 1:
                        before = {pid: ran_ns(pid) for pid in serving.workers}
                    if len(times) == KILL_AFTER:
                        busy = max(serving.workers, key=lambda pid: ran_ns(pid) - before[pid])
                        os.kill(busy, signal.SIGKILL)
    except httpx2.HTTPError as error:
        return times, tokens, type(error).__name__
    return times, tokens, "whole" if tokens == TOKENS else "short"


def ran_ns(pid: int) -> int:
    """How long its threads ran, to the nanosecond: the clock ticks of a whole process are too coarse for one
    that only writes."""
    threads = Path("/proc", str(pid), "task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads)


def table(seen: dict[str, list[Seen]]) -> str:
    columns = "tokens lost | it ended | longest gap, ms | next request | after, ms"
    lines = [f"| killed behind {KILL_AFTER} of {TOKENS} tokens | {columns} |", "| --- " * 6 + "|"]
    for name, ones in seen.items():
        lost = ", ".join(sorted({str(TOKENS - one.tokens) for one in ones}))
        how = ", ".join(sorted({one.how for one in ones}))
        status = ", ".join(sorted({one.next_status for one in ones}))
        gap = "-" if how != "whole" else f"{1e3 * statistics.median(one.gap_s for one in ones):.0f}"
        after = f"{1e3 * statistics.median(one.next_s for one in ones):.0f}"
        lines.append(f"| {name} | {lost} | {how} | {gap} | {status} | {after} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
