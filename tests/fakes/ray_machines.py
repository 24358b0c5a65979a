"""Machines of Ray's, as processes of this one: a head, and others with room for engines, until stdin ends.

`python -m tests.fakes.ray_machines MACHINES`. In a line of JSON it says where, and which processes, they are.
"""

from __future__ import annotations

import json
import os
import sys

CPUS = 3  # of each machine; Ray counts them, and looks at none
SMALL = {"object_store_memory": 80 << 20, "include_dashboard": False}
# As docs/operations.md has them: else a machine that is frozen is missed for a minute.
HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


def main() -> None:
    os.environ |= HEALTH_CHECKS | {"RAY_USAGE_STATS_ENABLED": "0"}
    from ray._private.ray_constants import PROCESS_TYPE_GCS_SERVER, PROCESS_TYPE_RAYLET
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    machines = [cluster.add_node(wait=False, num_cpus=CPUS, **SMALL) for _ in range(int(sys.argv[1]))]
    cluster.wait_for_nodes()
    (gcs,) = cluster.head_node.all_processes[PROCESS_TYPE_GCS_SERVER]
    raylets = [machine.all_processes[PROCESS_TYPE_RAYLET][0].process.pid for machine in machines]
    print(json.dumps({"address": cluster.address, "gcs": gcs.process.pid, "machines": raylets}), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
