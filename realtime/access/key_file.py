"""The key file: names, tenants and digests of keys, never a key.

It makes and digests keys, and turns a file's text into a `KeyFile` and back. Who may write the file is the
business of the command (`keys_command`); what a running server makes of it, of the ring (`keyring`).
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from realtime.endless_files import content_of
from realtime.tenants.allowance import Allowance
from realtime.toml_text import NotTomlError, tables_of

ALPHABET = string.ascii_letters + string.digits  # a double click selects all of it, and no URL escapes it
KEY_LENGTH = 43  # 256 bits

A_KEY = re.compile(rf"ms_[A-Za-z0-9]{{{KEY_LENGTH}}}")

# Not `$`, which a line's end may follow.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

HEADER = """\
# The keys of a Midstream server, as digests (SHA-256). A running server notices when this file changes.
# `midstream keys` writes it anew: edit values as you like, but comments of yours would be lost.
# Cut short, it would revoke keys: a server believes it only while its last line is there.
"""
END = "# The end of the keys."


class KeyEntry(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    tenant: Name
    digest: Digest
    admin: bool = False
    metrics: bool = False  # it may read those, and do nothing else

    def __post_init__(self) -> None:
        if self.admin and self.metrics:
            raise ValueError(
                "a key is `admin` or `metrics`, not both: an admin's key may read the metrics, too"
            )


class KeyFile(Struct, kw_only=True, forbid_unknown_fields=True):
    """All keys and tenants, by name. A tenant that is not named has an `Allowance` as it is by itself."""

    tenants: dict[Name, Allowance] = msgspec.field(default_factory=dict)
    keys: dict[Name, KeyEntry] = msgspec.field(default_factory=dict)


class KeyFileError(Exception):
    """The key file cannot be used; the message is a sentence that says which and why. It goes to the log, and
    names tables and fields: which of them is a key, by mistake, it does not say."""

    def __init__(self, said: str) -> None:
        super().__init__(A_KEY.sub("(a key)", said))


class KeyFileUnreadableError(KeyFileError):
    """It cannot be opened now, which says nothing of what is in it."""


def new_key() -> str:
    return "ms_" + random_text(KEY_LENGTH)


def random_text(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def digest(key: str) -> str:
    """A plain hash, fast and without salt: nobody guesses 256 random bits, however fast the hash, so there is
    nothing that a slow one would protect. Looking a digest up takes a time that tells at most of digests,
    and from a digest there is no way back to a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def read(path: Path) -> KeyFile:
    try:
        content = content_of(path)
        tables = tables_of(content)
        file = msgspec.convert(tables, KeyFile)
    except OSError as error:
        raise KeyFileUnreadableError(f"the key file {path} cannot be read: {error.strerror}") from None
    except NotTomlError as error:
        at = f", at {error.where}" if error.where else ""
        raise KeyFileError(f"the key file {path} is not TOML{at}") from None
    except msgspec.ValidationError as error:
        raise KeyFileError(f"the key file {path} is not right: {_naming(str(error), tables)}") from None
    _check_whole(path, content.decode(), tables)
    _check_each_once(path, file)
    return file


def _naming(problem: str, tables: dict[str, Any]) -> str:
    """The problem with the name of the table that has it, for which msgspec says `[...]`: there may be
    thousands. What is no table has no name: it may be a key that somebody wrote there."""
    what, at, where = problem.rpartition(" - at `$.")
    for kind, row in (("tenants", Allowance), ("keys", KeyEntry)):
        if at and where.startswith(f"{kind}[...]"):
            wrong = (
                name
                for name, table in tables[kind].items()
                if isinstance(table, dict) and _fits(name, Name) and not _fits(table, row)
            )
            if name := next(wrong, None):
                return f"{what} - at `{where.replace('[...]', f'.{name}', 1)}"
    return problem


def _fits(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _check_whole(path: Path, content: str, tables: dict[str, Any]) -> None:
    """A file that is being written, or of which a full disk kept a part, has lost keys and revokes none."""
    lines = content.splitlines()
    if HEADER.splitlines()[-1] in lines and END not in lines:
        raise KeyFileError(f"the key file {path} was cut short: it lacks its last line, `{END}`")
    if "keys" not in tables:
        raise KeyFileError(f"the key file {path} is empty: one that is to hold no key says so by `[keys]`")


def _check_each_once(path: Path, file: KeyFile) -> None:
    """Whose a key is that stands there twice cannot be told, and who revokes it by one name has it live on by
    the other."""
    names: dict[str, str] = {}
    for name, entry in file.keys.items():
        if (other := names.setdefault(entry.digest, name)) != name:
            raise KeyFileError(f'the key file {path} has one key twice, as "{other}" and as "{name}"')


def text(file: KeyFile) -> str:
    sections = [HEADER]
    for kind, rows in (("tenants", file.tenants), ("keys", file.keys)):
        for name, row in sorted(rows.items()):
            fields = msgspec.to_builtins(row).items()
            lines = [f"{field} = {msgspec.json.encode(value).decode()}" for field, value in fields]
            sections.append("\n".join([f"[{kind}.{name}]", *lines, ""]))
    if not file.keys:
        sections.append("[keys]\n")
    return "\n".join([*sections, f"{END}\n"])
