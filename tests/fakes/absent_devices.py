"""Our Triton kernels compiled for devices that are not there, and what each takes of them.

It happens in a process of its own, for tests run in Triton's interpreter, and Triton decides between the two
when it is imported: `python -m tests.fakes.absent_devices` reads a case a line, and answers it. Each case is
compiled by a copy of that process, since Triton knows one device, and takes longer to load than to compile.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec


class AbsentDevices:
    def __init__(self, cache: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment | {"TRITON_CACHE_DIR": str(cache)},
        )

    def compiled(self, kernels: str, *asked: object) -> Any:
        """What `compiled` says in the module of these kernels."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(msgspec.json.encode([kernels, asked]) + b"\n")
        self._process.stdin.flush()
        found = msgspec.json.decode(self._process.stdout.readline())
        assert found is not None, "nothing was compiled: it has written why"
        return found

    def end(self) -> None:
        self._process.communicate()


def main() -> None:
    from tests.fakes import absent_device, absent_device_draw, absent_device_products

    modules = {
        "attention": (absent_device.compiled, absent_device.Asked),
        "draw": (absent_device_draw.compiled, absent_device_draw.Asked),
        "products": (absent_device_products.compiled, absent_device_products.Asked),
    }
    for line in sys.stdin.buffer:
        if not (pid := os.fork()):
            kernels, asked = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
            compiled, kind = modules[kernels]
            found = compiled(*msgspec.json.decode(asked, type=kind))  # type: ignore[operator]
            _answer(found)
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            _answer(None)


def _answer(found: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
