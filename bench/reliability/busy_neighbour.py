"""A neighbour that is as busy as an attacker may be, and talks to nobody: what others lose beside it they
lose to a machine that is shared, and not to the server. `python -m bench.reliability.busy_neighbour`, until
it is ended."""

from __future__ import annotations

import os

from bench.reliability.abusive_frames import KINDS, encoded
from bench.reliability.raw_clients import framed

if __name__ == "__main__":
    os.nice(10)  # as an attacker
    print("begun", flush=True)
    while True:
        for kind in KINDS:
            framed(encoded(kind, "nobody", 0))
