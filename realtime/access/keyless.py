"""The checks of a server without keys: that a request was made to this machine, by a name that is its own.

Where nobody needs a key, whoever can have a request made is let in. Two can from afar. Whoever owns a name
can have it point here for a while (DNS rebinding): a page from there looks like ours, and only the name in
`Host` tells it apart. An address cannot be pointed elsewhere, nor can `localhost`; other names must be
known here. And a proxy passes on what the world asks; the headers that it adds tell.

With keys neither gains anything, for no browser adds a key by itself: then any name will do, and any proxy.
This knows headers, and neither keys nor pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address

from msgspec import Struct

from realtime.refusal import Refusal

# What proxies and tunnels add, and no browser: RFC 7239, and what was used before it and beside it.
FORWARDED = (
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "via",
)
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/@\[\]]+))(?::[0-9]*)?", re.IGNORECASE)


class KeylessRules(Struct, frozen=True):
    names: tuple[str, ...] = ()  # by which this server may be called, beside addresses and `localhost`
    insecure_open: bool = False  # whoever reaches it may use it, through a proxy too

    def check(self, headers: Mapping[str, str]) -> None:
        forwarded = next((name for name in FORWARDED if name in headers), None)
        if forwarded is not None and not self.insecure_open:
            raise Refusal(
                "forbidden",
                f"This server has no keys, and a proxy, open to others, sent this (header `{forwarded}`): "
                "start it with --keys-file, or with --insecure-open if whoever reaches the proxy may use it.",
            )
        if not self._may_be_called(headers.get("host", "")):
            raise Refusal(
                "forbidden",
                "This server has no keys, and `Host` says a name that is not known to be its own: call it by "
                "its address, list the name in --allowed-hosts, or start it with --keys-file.",
            )

    def _may_be_called(self, host: str) -> bool:
        if not host:
            return True  # every browser says it
        said = _HOST.fullmatch(host)
        if said is None:
            return False
        name = (said[1] or said[2]).lower()
        return name in self.names or name == "localhost" or name.endswith(".localhost") or _is_address(name)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
