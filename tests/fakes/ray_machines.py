"""Machines of Ray's, as processes of this one, until stdin ends.

`python -m tests.fakes.ray_machines MACHINES`. Lines on stdin tell it what an operator would do, and behind
each it says in a line of JSON where, and which processes, they are: as to begin with. With
`RAY_REDIS_ADDRESS` the head's GCS has in Redis what it knows.
"""

from __future__ import annotations

import json
import sys

from ray._private.ray_constants import PROCESS_TYPE_GCS_SERVER, PROCESS_TYPE_RAYLET

from keeper.trial_machines import HEAD, TrialMachines

CPUS = 3  # of each machine


class Machines(TrialMachines):
    def one_more(self) -> None:
        self._machines.append(self._cluster.add_node(**self._machine))

    def head_again(self) -> None:
        """What was left of it is gone first, as where `ray start --head --block` runs."""
        port = self._port
        self._cluster.remove_node(self._cluster.head_node, allow_graceful=False)
        self._cluster.add_node(gcs_server_port=port, **HEAD)

    def all_again(self) -> None:
        port = self._port
        self.end()
        self._boot(port)

    def say(self) -> None:
        (gcs,) = self._cluster.head_node.all_processes[PROCESS_TYPE_GCS_SERVER]
        raylets = [machine.all_processes[PROCESS_TYPE_RAYLET][0].process.pid for machine in self._machines]
        said = {"address": self.address, "gcs": gcs.process.pid, "machines": raylets}
        print(json.dumps(said), flush=True)

    @property
    def _port(self) -> int:
        return int(self.address.rpartition(":")[2])


def main() -> None:
    machines = Machines(int(sys.argv[1]), CPUS)
    does = {
        "one more": Machines.one_more,
        "head again": Machines.head_again,
        "all again": Machines.all_again,
    }
    machines.say()
    for line in sys.stdin:
        does[line.strip()](machines)
        machines.say()
    machines.end()


if __name__ == "__main__":
    main()
