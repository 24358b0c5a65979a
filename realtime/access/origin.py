"""The check of a web page's origin: which pages may ask. Those that this server served itself, and those
that it was told of.

Browsers let any page ask any server, this machine's own included, and say honestly where the page came
from: by `Origin` with a WebSocket, a POST and whatever a script wants to read, and by `Sec-Fetch-Site` with
the rest (an image, a link). Programs that are no browsers send neither. It knows headers, and not what is
asked; whether the name by which a page of ours was called is ours is the business of `keyless`.
"""

from __future__ import annotations

from collections.abc import Mapping

# Another port of this machine is `same-site`, and another origin.
_ELSEWHERE = ("cross-site", "same-site")
BROWSER = "Mozilla/"  # so each of them begins to say what it is, whatever page asks


def allowed(headers: Mapping[str, str], origins: tuple[str, ...] = ()) -> bool:
    """Whether no page is behind this request, or one that may be."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site") not in _ELSEWHERE
    return origin in origins or own(origin, headers)


def of_unsaid_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser asks, and does not say for which page. With an image it says so by `Sec-Fetch-Site`
    alone, and where it has no TLS only to what it takes for its own machine: `0.0.0.0` leads here as well.
    And `none` is not whoever typed the address alone: it is what any page has fetched ahead, and where
    another address that was typed, or a link outside of browsers, leads on to."""
    said = "origin" in headers or headers.get("sec-fetch-site", "none") != "none"
    return not said and headers.get("user-agent", "").startswith(BROWSER)


def own(origin: str, headers: Mapping[str, str]) -> bool:
    """Whether a page of this origin came from the server that this request went to. An origin is compared
    whole: scheme, host and port."""
    host = headers.get("host")
    # What carries TLS before us is not seen here, so the scheme of our own page may be either.
    return bool(host) and origin in (f"http://{host}", f"https://{host}")
