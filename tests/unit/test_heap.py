"""The heap once it has settled: the collector looks at what came later alone."""

from __future__ import annotations

import subprocess
import sys

SETTLED = """
import gc
from engine.heap import settle_heap
there = [[] for _ in range(1000)]
settle_heap()
later = [[] for _ in range(10)]
looked_at = {id(thing) for thing in gc.get_objects()}
print(sum(id(thing) in looked_at for thing in there), sum(id(thing) in looked_at for thing in later))
"""


def test_what_was_there_is_looked_at_no_more() -> None:
    done = subprocess.run([sys.executable, "-c", SETTLED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "10"]
