"""The key file as the running server knows it: who holds a key, and what a tenant may take, as of now.

It looks at the file whenever a key is shown, and when it is asked to. A file that has become unreadable
changes nothing: it is reported once, and what was last read holds.
"""

from __future__ import annotations

import logging
from pathlib import Path

from realtime.access.key_file import Book, Entry, Unreadable, digest, read
from realtime.tenants.allowance import Allowance, Holder

log = logging.getLogger(__name__)

Seen = tuple[int, int, int] | None  # of a file: which, when written, how large


class Keyring:
    def __init__(self, path: Path) -> None:
        """Raises Unreadable: a server does not start with keys that it cannot read."""
        self._path = path
        self._seen = _seen(path)
        self._take(read(path))
        if not self._entries:
            log.warning("the key file %s holds no key: nobody can connect", path)

    def holder(self, key: str) -> Holder | None:
        self.look()
        entry = self._entries.get(digest(key))
        return None if entry is None else Holder(entry.tenant, entry.digest, entry.admin)

    def holds(self, holder: Holder) -> bool:
        """Whether the key with which somebody came in is still one, and still the same tenant's."""
        entry = self._entries.get(holder.key or "")
        return entry is not None and entry.tenant == holder.tenant

    def has_tenant(self, tenant: str) -> bool:
        """Whether any key is this tenant's."""
        return any(entry.tenant == tenant for entry in self._entries.values())

    def allowance(self, tenant: str) -> Allowance:
        return self._tenants.get(tenant, Allowance())

    def look(self) -> None:
        """Read the file again, if it is another than the one that was read."""
        seen = _seen(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._take(read(self._path))
        except Unreadable as problem:
            log.error("%s; the keys that were read before still hold", problem)
        else:
            log.info("the key file has changed: %d keys", len(self._entries))

    def _take(self, book: Book) -> None:
        self._tenants = book.tenants
        self._entries: dict[str, Entry] = {entry.digest: entry for entry in book.keys.values()}


def _seen(path: Path) -> Seen:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
