"""In the place of a gateway's agent: says that it lives, what is no news, and no text, tells what it heard as
a placement, and ends.

`python -m tests.fakes.talking_agent ADDRESS FILE GATEWAY`.
"""

from __future__ import annotations

import sys

import msgspec

from realtime.hub.demand import Demand
from realtime.hub.placement import PlacedModel, Placement


def main() -> None:
    print("\nsomething else", flush=True)
    sys.stdout.buffer.write(b"caf\xe9\n")  # as a library may, of which the locale is another
    sys.stdout.buffer.flush()
    heard = msgspec.json.decode(sys.stdin.readline(), type=dict[str, Demand])
    models = [PlacedModel(name, demand.streams, 1, 1, may_sleep=True) for name, demand in heard.items()]
    print(msgspec.json.encode(Placement([], [], models)).decode(), flush=True)


if __name__ == "__main__":
    main()
