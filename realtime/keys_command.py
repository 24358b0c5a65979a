"""The command `midstream keys`: adds, lists and revokes the keys of a key file.

A key is printed once, alone on standard output, when it is made; the file has its digest only. The file
is replaced as a whole, so a server reads the old one or the new one, and only its owner may read it.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from realtime.access.key_file import KeyEntry, KeyFile, KeyFileError, digest, new_key, read, text
from realtime.tenants.allowance import HIGHEST, LOWEST, MOST, Allowance

FILE = "MIDSTREAM_KEYS_FILE"
LIMITS = (
    "max_streams",
    "max_connections",
    "tokens_per_minute",
    "loads_per_hour",
    "prefill_tokens",
    "priority",
)


class KeysCommandError(Exception):
    """Nothing was changed; the message says why."""


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    file = arguments.file or environ.get(FILE)
    if not file:
        parser.error(f"no key file was named: say --file keys.toml, or set {FILE}")
    try:
        commands = {"add": _add, "list": _list, "revoke": _revoke}
        commands[arguments.command](Path(file), arguments)
    except (KeysCommandError, KeyFileError) as problem:
        print(f"midstream: {problem}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"midstream: the key file {file} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _add(path: Path, arguments: Namespace) -> None:
    name, tenant = arguments.name, arguments.tenant or arguments.name
    limits = {limit: given for limit in LIMITS if (given := getattr(arguments, limit)) is not None}
    key = new_key()
    with _edited(path) as key_file:
        if name in key_file.keys:
            raise KeysCommandError(f'there is a key "{name}" already: take another name, or revoke it first')
        key_file.keys[name] = KeyEntry(
            tenant=tenant, digest=digest(key), admin=arguments.admin, metrics=arguments.metrics
        )
        if limits or tenant not in key_file.tenants:
            before = key_file.tenants.get(tenant, Allowance())
            key_file.tenants[tenant] = msgspec.structs.replace(before, **limits)
        _print(key)  # before it is worth anything: else it might be, and nobody have it
    print(f'Key "{name}" of tenant "{tenant}". It is not shown again.', file=sys.stderr)


def _list(path: Path, arguments: Namespace) -> None:
    key_file = read(path)
    lines = list[str]()
    for name, entry in sorted(key_file.keys.items()):
        allowed = msgspec.to_builtins(key_file.tenants.get(entry.tenant, Allowance()))
        limits = " ".join(f"{limit}={_shown(value)}" for limit, value in allowed.items())
        role = "  admin" * entry.admin + "  metrics" * entry.metrics
        lines.append(f"{name}  tenant={entry.tenant}{role}  {limits}".rstrip() + "\n")
    _print("".join(lines), end="")


def _print(text: str, end: str = "\n") -> None:
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it would be tried at exit again
        raise KeysCommandError(f"standard output cannot be written: {error.strerror}") from None


def _shown(value: Any) -> str:
    return ":".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _revoke(path: Path, arguments: Namespace) -> None:
    with _edited(path, must_be=True) as key_file:
        if arguments.name not in key_file.keys:
            raise KeysCommandError(f'there is no key "{arguments.name}" in {path}')
        tenant = key_file.keys.pop(arguments.name).tenant
        if all(entry.tenant != tenant for entry in key_file.keys.values()):
            key_file.tenants.pop(tenant, None)
    print(f'Key "{arguments.name}" is revoked; a running server notices within a second.', file=sys.stderr)


@contextmanager
def _edited(path: Path, *, must_be: bool = False) -> Iterator[KeyFile]:
    """The key file, to be changed while nobody else does, and written when that went well."""
    path = _resolved(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if path.exists() and not path.is_file():  # which would be replaced: a device, for everybody
            raise KeysCommandError(f"{path} is no file: name one that is to hold the keys")
        there = path.exists() and path.stat().st_size > 0
        key_file = read(path) if must_be or there else KeyFile()
        yield key_file
        _replace(path, text(key_file))
    finally:
        os.close(folder)


def _resolved(path: Path) -> Path:
    with suppress(RuntimeError):  # as older Pythons say of a link to itself
        path = path.resolve()
    if path.is_symlink():
        raise KeysCommandError(f"{path} is a link that leads to itself: name a file that is to hold the keys")
    return path


def _replace(path: Path, content: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # its mode is 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if path.exists():
                _resemble(path, descriptor)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def _resemble(path: Path, descriptor: int) -> None:
    """The server may run as another user than whoever changes its keys, and must be able to read them."""
    before = path.stat()
    os.fchmod(descriptor, before.st_mode & 0o777)
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, before.st_uid, before.st_gid)


# -- the command line --------------------------------------------------------------------------------


def _parser() -> ArgumentParser:
    file = ArgumentParser(add_help=False)
    file.add_argument(
        "--file",
        metavar="FILE",
        help=f"the key file [{FILE}]; `midstream serve` is told of it by --keys-file",
    )
    parser = ArgumentParser(
        prog="midstream keys", description="The keys of a server's key file.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", metavar="add | list | revoke", required=True)
    add = commands.add_parser("add", parents=[file], help="make a key, and print it once", allow_abbrev=False)
    add.add_argument("name", metavar="NAME", type=_name, help="what the key is called here")
    add.add_argument(
        "--tenant",
        metavar="T",
        type=_name,
        help="whose key it is (default NAME); its keys see the same streams, and share what follows",
    )
    add.add_argument(
        "--max-streams",
        metavar="N",
        type=_count,
        help="most unfinished streams (default half of the server's)",
    )
    add.add_argument(
        "--max-connections",
        metavar="N",
        type=_count,
        help="most open connections (default half of the server's)",
    )
    add.add_argument(
        "--tokens-per-minute", metavar="N", type=_count, help="tokens of prompt and output together"
    )
    add.add_argument("--loads-per-hour", metavar="N", type=_count, help="models that are loaded for it")
    add.add_argument(
        "--prefill-tokens", metavar="N", type=_count, help="most prompt tokens that wait for the engine"
    )
    add.add_argument(
        "--priority",
        metavar="LOW:HIGH",
        type=_priorities,
        help="priorities that a start may ask for, as --priority=-8:4, or the highest alone (default -8:0)",
    )
    role = add.add_mutually_exclusive_group()
    role.add_argument(
        "--admin",
        action="store_true",
        help="the key may read the server's metrics, load and unload models, and list and cancel"
        " everybody's streams",
    )
    role.add_argument(
        "--metrics", action="store_true", help="the key may read the server's metrics, and do nothing else"
    )
    commands.add_parser(
        "list", parents=[file], help="say which keys there are; not what they are", allow_abbrev=False
    )
    revoke = commands.add_parser(
        "revoke", parents=[file], help="make a key worthless, and end its connections", allow_abbrev=False
    )
    revoke.add_argument("name", metavar="NAME", type=_name)
    return parser


def _name(said: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", said):
        raise ArgumentTypeError(f"{said!r} is no name: take up to 64 letters, digits, - and _")
    return said


def _count(said: str) -> int:
    if not re.fullmatch(r"[0-9]{1,13}", said) or not 1 <= int(said) <= MOST:
        raise ArgumentTypeError(f"it is {said!r}; it must be a whole number from 1 to {MOST}")
    return int(said)


def _priorities(said: str) -> tuple[int, int]:
    found = re.fullmatch(r"(?:(-?\d+):)?(-?\d+)", said)
    low, high = (int(found[1] or LOWEST), int(found[2])) if found else (1, 0)
    if not LOWEST <= low <= high <= HIGHEST:
        raise ArgumentTypeError(
            f"it is {said!r}; it must be LOW:HIGH, or HIGH alone, within {LOWEST}:{HIGHEST}"
        )
    return low, high


if __name__ == "__main__":
    sys.exit(main())
