"""A neighbour that is as busy as an attacker may be, and talks to nobody: what others lose beside it they
lose to a machine that is shared, and not to the server. `python -m bench.reliability.busy_neighbour`, until
it is ended."""

from __future__ import annotations

from bench.reliability.abusive_frames import KINDS, encoded
from bench.reliability.idle_processors import keep_to_idle_processors
from bench.reliability.raw_clients import framed

if __name__ == "__main__":
    keep_to_idle_processors()  # as an attacker
    print("begun", flush=True)
    while True:
        for kind in KINDS:
            framed(encoded(kind, "nobody", 0))
