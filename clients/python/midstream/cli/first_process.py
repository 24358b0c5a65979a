"""The first process of a container: the kernel keeps every signal from it that it says nothing about, and so
SIGTERM, which ends any other."""

from __future__ import annotations

import os
import signal


def end_when_told() -> None:
    """At once, as anywhere else, until a command sees to its own end. To load a server takes seconds, and to
    load a model may take minutes: whoever stops the container would wait in vain, and then kill it."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
