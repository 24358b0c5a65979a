"""Tells a gateway where engines are: `python -m keeper.agent ADDRESS FILE` keeps the file as the ledger says.

It is a process of its own beside each gateway. When Ray's GCS does not answer, or has no fleet, the file
stays as it is; after a minute without it Ray's library may end the process, and another is started.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from keeper.addresses_file import write
from keeper.ledger import Ledger, LedgerError

LOOK_EVERY_S = 0.5


def main() -> None:
    address, file = sys.argv[1:]
    sys.stderr = sys.stdout  # where the gateway reads; what Ray's library writes beside Python is not for it
    told = ""
    while True:
        try:
            keep_written(Ledger(address), Path(file))
        except LedgerError as problem:
            if str(problem) != told:
                print(f"{problem}; engines are looked for where they were", flush=True)
            told = str(problem)
            time.sleep(LOOK_EVERY_S)


def keep_written(ledger: Ledger, file: Path) -> None:
    while True:
        if ledger.plan() is not None:
            write(file, [kept.address for kept in ledger.kept().values() if kept.address])
        time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    main()
