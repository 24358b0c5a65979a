"""Machines of Ray's for trying, all of them this one: a head, and others with room for engines, as processes
below ours."""

from __future__ import annotations

import os
from typing import Any

from ray.cluster_utils import Cluster

SMALL: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False}
# Who starts machines for load, and who shows drivers what is logged, would have nothing to do.
HEAD: dict[str, Any] = {"num_cpus": 0, "no_monitor": True, "include_log_monitor": False, **SMALL}
# As docs/operations.md has them: else a machine that is frozen is missed for a minute.
ENVIRONMENT = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class TrialMachines:
    def __init__(self, count: int, cpus: int) -> None:
        """`cpus`: that each says it has; Ray counts them, and looks at none."""
        os.environ |= ENVIRONMENT
        self._count = count
        self._machine = {"num_cpus": cpus, **SMALL}
        self._boot(port=0)

    def _boot(self, port: int) -> None:
        self._cluster = Cluster(initialize_head=True, head_node_args={"gcs_server_port": port, **HEAD})
        self._machines = [self._cluster.add_node(wait=False, **self._machine) for _ in range(self._count)]
        self._cluster.wait_for_nodes()

    @property
    def address(self) -> str:
        """Of Ray's GCS."""
        return str(self._cluster.address)

    def end(self) -> None:
        self._cluster.shutdown()
