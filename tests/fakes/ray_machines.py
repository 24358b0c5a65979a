"""Machines of Ray's, as processes of this one, until stdin ends.

`python -m tests.fakes.ray_machines MACHINES`. Lines on stdin tell it what an operator would do, and behind
each it says in a line of JSON where, and which processes, they are: as to begin with. With
`RAY_REDIS_ADDRESS` the head's GCS has in Redis what it knows.
"""

from __future__ import annotations

import json
import sys

from keeper.trial_machines import TrialMachines

CPUS = 3  # of each machine


def say(machines: TrialMachines) -> None:
    said = {"address": machines.address, "gcs": machines.gcs, "machines": machines.raylets}
    print(json.dumps(said), flush=True)


def main() -> None:
    machines = TrialMachines(int(sys.argv[1]), CPUS)
    does = {
        "one more": TrialMachines.one_more,
        "head again": TrialMachines.head_again,
        "all again": TrialMachines.all_again,
    }
    say(machines)
    for line in sys.stdin:
        does[line.strip()](machines)
        say(machines)
    machines.end()


if __name__ == "__main__":
    main()
