"""The text of a TOML file as tables, or why it is none: whoever reads one catches a single exception."""

from __future__ import annotations

import re
import tomllib
from typing import Any


class NotTomlError(Exception):
    """The message says why, and may quote what is there; `where` quotes nothing."""

    def __init__(self, why: str, where: str = "") -> None:
        super().__init__(why)
        self.where = where


def tables_of(content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at ([^()]+)\)$", str(error))
        raise NotTomlError(str(error), found[1] if found else "") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise NotTomlError(f"line {line} is not UTF-8", f"line {line}") from None
    except RecursionError:  # it has no limit of its own
        raise NotTomlError("it is nested too deep") from None
    except ValueError:  # Python's, of a number with thousands of digits
        raise NotTomlError("a number in it is too long") from None
