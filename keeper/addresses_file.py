"""The file that tells a gateway where engines are, one address a line."""

from __future__ import annotations

import os
from pathlib import Path


class AddressesFileError(Exception):
    """It cannot be written; the message says why."""


def write(file: Path, addresses: list[str]) -> None:
    """As a whole, where it changes: the gateway reads the old one or the new one. Raises
    AddressesFileError."""
    text = "".join(f"{address}\n" for address in addresses).encode()
    try:
        if not file.exists() or file.read_bytes() != text:
            new = file.with_name(f"{file.name}.{os.getpid()}")  # agents of other gateways may write it, too
            new.write_bytes(text)
            new.replace(file)
    except OSError as error:
        raise AddressesFileError(f"the file {file} cannot be written: {error.strerror}") from None
