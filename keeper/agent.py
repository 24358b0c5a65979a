"""Stands between a gateway and the fleet: `python -m keeper.agent ADDRESS FILE GATEWAY` keeps the file of
addresses as the ledger says, tells the ledger what the gateway says of its streams, and the gateway how the
fleet is. Both are lines of JSON, through stdin and stdout; an empty one there says that it lives, and any
other is for the gateway's log.

It is a process of its own beside each gateway. When Ray's GCS does not answer, or has no fleet, the file
stays as it is; after a minute without it Ray's library may end the process, and another is started.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Protocol

import msgspec

from keeper.addresses_file import AddressesFileError, write
from keeper.gateways import Said
from keeper.ledger import Ledger, LedgerError
from keeper.plan import Kept, Machine, Plan, is_gateway
from keeper.status import Seen
from keeper.vital_thread import vital
from realtime.hub.demand import Demand
from realtime.hub.placement import Placement

LOOK_EVERY_S = 0.5
LOOK_AT_MACHINES = 4  # each so many times


class Entries(Protocol):
    def plan(self) -> Plan | None: ...
    def kept(self) -> dict[str, Kept]: ...
    def say(self, gateway: str, said: Said) -> None: ...
    def machines(self) -> dict[str, Machine]: ...
    def placed(self) -> dict[str, bool]: ...


class Agent:
    def __init__(self, file: Path, gateway: str) -> None:
        self._file = file
        self._gateway = gateway
        self._said: Said | None = None  # and not told yet
        self._looks = 0
        self._shown: Placement | None = None

    def look(self, ledger: Entries) -> None:
        plan = ledger.plan()
        if plan is None:
            return
        kept = ledger.kept()
        write(self._file, [one.address for name, one in kept.items() if one.address and not is_gateway(name)])
        said, self._said = self._said, None
        if said is not None and any(model.scales for model in plan.models.values()):
            ledger.say(self._gateway, said)
        if self._looks % LOOK_AT_MACHINES == 0 or not _same(plan, self._shown):
            self._show(Seen(plan, ledger.machines(), ledger.placed(), kept).placement)
        self._looks += 1

    def _show(self, placement: Placement) -> None:
        if placement != self._shown:
            print(msgspec.json.encode(placement).decode(), flush=True)
            self._shown = placement

    def hear(self, lines: Iterable[str]) -> None:
        """From the gateway."""
        for count, line in enumerate(lines):
            self._said = Said(count, msgspec.json.decode(line, type=dict[str, Demand]))


def _same(plan: Plan, shown: Placement | None) -> bool:
    """Whether the gateway knows already how many engines there are to be."""
    if shown is None:
        return False
    return {name: model.engines for name, model in plan.served.items()} == {
        model.name: model.engines for model in shown.models
    }


def _hear_to_the_end(agent: Agent) -> None:
    vital("what hears the gateway", partial(agent.hear, sys.stdin))
    os._exit(0)  # it is gone


def main() -> None:
    address, file, gateway = sys.argv[1:]
    sys.stderr = sys.stdout  # where the gateway reads; what Ray's library writes beside Python is not for it
    agent, told = Agent(Path(file), gateway), ""
    Thread(target=_hear_to_the_end, args=(agent,), daemon=True).start()
    while True:
        try:
            ledger = Ledger(address)
            while True:
                agent.look(ledger)
                told = ""
                _rest()
        except (LedgerError, AddressesFileError) as problem:
            if str(problem) != told:
                print(f"{problem}; engines are looked for where they were", flush=True)
            told = str(problem)
            _rest()


def _rest() -> None:
    """Until the next look, as one that lives."""
    print(flush=True)
    time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    main()
