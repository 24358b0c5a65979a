"""The keyring of the running server: who holds a key, and what a tenant may take, by the key file as it is
now.

It looks at the file whenever a key is shown, and when it is asked to. A file that has become unreadable, or
is not whole, changes nothing: it is reported once, and what was last read holds.
"""

from __future__ import annotations

import logging
from pathlib import Path

from realtime.access.key_file import KeyEntry, KeyFile, KeyFileError, KeyFileUnreadableError, digest, read
from realtime.endless_files import is_endless, tell_if_endless
from realtime.tenants.allowance import UNSAID, Allowance, Holder

log = logging.getLogger(__name__)

Version = tuple[int, int, int] | None  # of a file: which, when written, how large


class Keyring:
    def __init__(self, path: Path) -> None:
        """Raises KeyFileError: a server does not start with keys that it cannot read."""
        self._path = path
        self._reported: tuple[Version, str] | None = None
        self._version = _version(path)
        tell_if_endless(path)
        self._use(read(path))
        if not self._holders:
            log.warning("the key file %s holds no key: nobody can connect", path)

    def holder(self, key: str) -> Holder | None:
        self.reload()
        return self._holders.get(digest(key))

    def holds(self, holder: Holder) -> bool:
        """Whether the key with which somebody came in is still one, of the same tenant, and for more than the
        metrics."""
        now = self._holders.get(holder.key or "")
        return now is not None and now.tenant == holder.tenant and not now.metrics

    def has_tenant(self, tenant: str) -> bool:
        """Whether any key is this tenant's, for more than the metrics."""
        return tenant in self._served

    def allowance(self, tenant: str) -> Allowance:
        return self._tenants.get(tenant, UNSAID)

    def reload(self) -> None:
        """Read the file again, if it is another than the one that was read."""
        version = _version(self._path)
        if version == self._version:
            return
        try:
            self._use(_read_again(self._path))
        except KeyFileError as problem:
            self._report(version, problem)
            if isinstance(problem, KeyFileUnreadableError):
                return  # there may be no more to it than that descriptors were used up
        else:
            self._reported = None
            log.info("the key file has changed: %d keys", len(self._holders))
        self._version = version

    def _report(self, version: Version, problem: KeyFileError) -> None:
        if (version, str(problem)) != self._reported:
            log.error("%s; the keys that were read before still hold", problem)
        self._reported = version, str(problem)

    def _use(self, file: KeyFile) -> None:
        self._tenants = file.tenants
        self._holders = {entry.digest: _holder(name, entry) for name, entry in file.keys.items()}
        self._served = {holder.tenant for holder in self._holders.values() if not holder.metrics}


def _holder(name: str, entry: KeyEntry) -> Holder:
    return Holder(entry.tenant, entry.digest, entry.admin, entry.metrics, name)


def _read_again(path: Path) -> KeyFile:
    if is_endless(path):
        raise KeyFileUnreadableError(f"the key file {path} cannot be read: it is no file")
    return read(path)


def _version(path: Path) -> Version:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
