"""In the place of a gateway's agent: says what is no news, tells what it heard as a placement, and ends.

`python -m tests.fakes.talking_agent ADDRESS FILE GATEWAY`.
"""

from __future__ import annotations

import sys

import msgspec

from realtime.hub.demand import Demand
from realtime.hub.placement import PlacedModel, Placement


def main() -> None:
    print("something else", flush=True)
    heard = msgspec.json.decode(sys.stdin.readline(), type=dict[str, Demand])
    models = [PlacedModel(name, demand.streams, 1, 1, may_sleep=True) for name, demand in heard.items()]
    print(msgspec.json.encode(Placement([], [], models)).decode(), flush=True)


if __name__ == "__main__":
    main()
