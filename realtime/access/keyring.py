"""The keyring of the running server: who holds a key, and what a tenant may take, by the key file as it is
now.

It looks at the file whenever a key is shown, and when it is asked to. One that has changed is read in a
thread of its own, as ten thousand keys take half a second: whoever shows a key meanwhile waits for that, and
nobody else; and nobody waits for what else takes long in threads, such as names that are looked up in vain. A
file that has become unreadable, or is not whole, changes nothing: it is reported once, and what was last read
holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from realtime.access.key_file import KeyEntry, KeyFile, KeyFileError, KeyFileUnreadableError, digest, read
from realtime.endless_files import is_endless, tell_if_endless
from realtime.tenants.allowance import UNSAID, Allowance, Holder

log = logging.getLogger(__name__)

Version = tuple[int, int, int] | None  # of a file: which, when written, how large


class Keys(NamedTuple):
    """What a key file says, as it is asked."""

    holders: dict[str, Holder]  # by the digests of their keys
    allowances: dict[str, Allowance]  # of tenants that are named
    served: set[str]  # tenants that have a key, for more than the metrics


class Keyring:
    def __init__(self, path: Path) -> None:
        """Raises KeyFileError: a server does not start with keys that it cannot read."""
        self.on_change: Callable[[], None] = _nothing  # other keys hold, or other allowances
        self._path = path
        self._reported: tuple[Version, str] | None = None
        self._reading = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="keys")
        self._thread.submit(int)  # it is there from now on, when none can be started, too
        self._version = _version(path)
        tell_if_endless(path)
        self._keys = _keys_of(read(path))
        if not self._keys.holders:
            log.warning("the key file %s holds no key: nobody can connect", path)

    async def holder(self, key: str) -> Holder | None:
        await self.reload()
        return self._keys.holders.get(digest(key))

    def holds(self, holder: Holder) -> bool:
        """Whether the key with which somebody came in is still one, of the same tenant, and for more than the
        metrics."""
        now = self._keys.holders.get(holder.key or "")
        return now is not None and now.tenant == holder.tenant and not now.metrics

    def has_tenant(self, tenant: str) -> bool:
        """Whether any key is this tenant's, for more than the metrics."""
        return tenant in self._keys.served

    def allowance(self, tenant: str) -> Allowance:
        return self._keys.allowances.get(tenant, UNSAID)

    async def reload(self) -> None:
        """Read the file again, if it is another than the one that was read."""
        if _version(self._path) != self._version:
            async with self._reading:
                await self._reload()

    async def _reload(self) -> None:
        version = _version(self._path)
        if version == self._version:
            return  # somebody has read it meanwhile
        try:
            loop = asyncio.get_running_loop()
            self._keys = await loop.run_in_executor(self._thread, _read_again, self._path)
        except KeyFileError as problem:
            self._report(version, problem)
            if isinstance(problem, KeyFileUnreadableError):
                return  # there may be no more to it than that descriptors were used up
        else:
            self._reported = None
            log.info("the key file has changed: %d keys", len(self._keys.holders))
            self.on_change()
        self._version = version

    def _report(self, version: Version, problem: KeyFileError) -> None:
        if (version, str(problem)) != self._reported:
            log.error("%s; the keys that were read before still hold", problem)
        self._reported = version, str(problem)


def _nothing() -> None:
    pass


def _keys_of(file: KeyFile) -> Keys:
    holders = {entry.digest: _holder(name, entry) for name, entry in file.keys.items()}
    served = {holder.tenant for holder in holders.values() if not holder.metrics}
    return Keys(holders, file.tenants, served)


def _holder(name: str, entry: KeyEntry) -> Holder:
    return Holder(entry.tenant, entry.digest, entry.admin, entry.metrics, name)


def _read_again(path: Path) -> Keys:
    if is_endless(path):
        raise KeyFileUnreadableError(f"the key file {path} cannot be read: it is no file")
    return _keys_of(read(path))


def _version(path: Path) -> Version:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
