"""The check of a web page's origin: which pages may connect. Those that this server served itself, and those
that it was told of.

Browsers let any page open a WebSocket to any server, this machine's own included, and say honestly where the
page came from. Programs that are no browsers send no `Origin`.

Whoever owns a name can have it point at any address for a while, this machine's own included (DNS rebinding),
and a page from there looks like ours. Where a key is needed that gains nothing. Where none is, a page is ours
only if it was fetched from an address, or from `localhost`: those cannot be pointed elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit


def allowed(headers: Mapping[str, str], origins: tuple[str, ...] = (), *, any_name: bool = False) -> bool:
    """Whether no page is behind this request, or one that may be. An origin is compared whole: scheme, host
    and port. With `any_name` our own page may have come from whatever name leads here."""
    origin = headers.get("origin")
    if origin is None or origin in origins:
        return True
    return own(origin, headers) and (any_name or _cannot_be_pointed_elsewhere(origin))


def own(origin: str, headers: Mapping[str, str]) -> bool:
    """Whether a page of this origin came from the server that this request went to."""
    # What carries TLS before us is not seen here, so the scheme of our own page may be either.
    page = urlsplit(origin)
    return page.scheme in ("http", "https") and page.netloc == headers.get("host")


def _cannot_be_pointed_elsewhere(origin: str) -> bool:
    host = urlsplit(origin).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
