"""Machines of Ray's, as processes of this one: a head, and others with room for engines, until stdin ends.

`python -m tests.fakes.ray_machines MACHINES`. Lines on stdin tell it what an operator would do, and behind
each it says in a line of JSON where, and which processes, they are: as to begin with. With
`RAY_REDIS_ADDRESS` the head's GCS has in Redis what it knows.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

CPUS = 3  # of each machine; Ray counts them, and looks at none
SMALL: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False}
HEAD: dict[str, Any] = {"num_cpus": 0, **SMALL}
# As docs/operations.md has them: else a machine that is frozen is missed for a minute.
HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


class Machines:
    def __init__(self, count: int) -> None:
        self._count = count
        self._boot(port=0)

    def _boot(self, port: int) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args={"gcs_server_port": port, **HEAD})
        self._machines = [
            self._cluster.add_node(wait=False, num_cpus=CPUS, **SMALL) for _ in range(self._count)
        ]
        self._cluster.wait_for_nodes()

    def one_more(self) -> None:
        self._machines.append(self._cluster.add_node(num_cpus=CPUS, **SMALL))

    def head_again(self) -> None:
        """What was left of it is gone first, as where `ray start --head --block` runs."""
        port = self._port
        self._cluster.remove_node(self._cluster.head_node, allow_graceful=False)
        self._cluster.add_node(gcs_server_port=port, **HEAD)

    def all_again(self) -> None:
        port = self._port
        self.end()
        self._boot(port)

    def end(self) -> None:
        self._cluster.shutdown()

    def say(self) -> None:
        from ray._private.ray_constants import PROCESS_TYPE_GCS_SERVER, PROCESS_TYPE_RAYLET

        (gcs,) = self._cluster.head_node.all_processes[PROCESS_TYPE_GCS_SERVER]
        raylets = [machine.all_processes[PROCESS_TYPE_RAYLET][0].process.pid for machine in self._machines]
        said = {"address": self._cluster.address, "gcs": gcs.process.pid, "machines": raylets}
        print(json.dumps(said), flush=True)

    @property
    def _port(self) -> int:
        return int(self._cluster.address.rpartition(":")[2])


def main() -> None:
    os.environ |= HEALTH_CHECKS | {"RAY_USAGE_STATS_ENABLED": "0"}
    machines = Machines(int(sys.argv[1]))
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
