"""The program's standard streams, as commands need them: there, and able to take whatever is written."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path


def prepare_standard_streams() -> None:
    """Python has none where the caller has closed one; and in an encoding that has not every character, a
    text from a model would be an exception."""
    nothing = Path(os.devnull)
    sys.stdin = sys.stdin or nothing.open(encoding="utf-8")
    sys.stdout = sys.stdout or nothing.open("w", encoding="utf-8")
    if isinstance(sys.stdout, TextIOWrapper):  # a notebook's or a test's is not
        sys.stdout.reconfigure(errors="backslashreplace")
