"""The process in which grammars are compiled for the first time.

A line in is how many seconds a grammar may take of a processor, and the grammar; a line out, what is wrong
with it, if anything is. It ends by a signal where that takes longer, or too much memory, and when nobody asks
any more.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from functools import partial

from engine.structure.checker import FAILED
from engine.structure.compiler import problem_of
from engine.structure.worker import Worker

MOST_BYTES = 1 << 30  # of addresses: those of deep stacks among them


def main() -> None:
    # The gateway, which gets the same signals, decides when it ends.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    deep = Worker("grammars")
    for line in sys.stdin.buffer:
        most_s, source = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, most_s)
        compiled = deep.submit(partial(problem_of, source))  # or this ends: there is no room for its thread
        try:
            problem = compiled.result()
        except BaseException:  # of the library, which is of another language  # noqa: BLE001
            problem = FAILED
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(problem) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
