"""The file that tells a gateway where engines are, one address a line."""

from __future__ import annotations

import os
from pathlib import Path


def write(file: Path, addresses: list[str]) -> None:
    """As a whole, where it changes: the gateway reads the old one or the new one."""
    text = "".join(f"{address}\n" for address in addresses)
    if not file.exists() or file.read_text() != text:
        new = file.with_name(f"{file.name}.{os.getpid()}")  # agents of other gateways may write it, too
        new.write_text(text)
        new.replace(file)
