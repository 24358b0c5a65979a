"""Which web pages may open a connection: those that this server served itself, and those that it was told of.

Browsers let any page open a WebSocket to any server, this machine's own included, and say honestly where
the page came from. Programs that are no browsers send no `Origin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit


def allowed(headers: Mapping[str, str], origins: tuple[str, ...] = ()) -> bool:
    """Whether the page behind this handshake is ours. An origin is compared whole: scheme, host and port."""
    origin = headers.get("origin")
    if origin is None or origin in origins:
        return True
    # What carries TLS before us is not seen here, so the scheme of our own page may be either.
    page = urlsplit(origin)
    return page.scheme in ("http", "https") and page.netloc == headers.get("host")
