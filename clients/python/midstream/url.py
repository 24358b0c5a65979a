"""The server's URL: from the address that a person has at hand to that of the WebSocket. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit, urlunsplit

PATH = "/v1/realtime"
_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


def websocket_url(url: object) -> str:
    """`host:8000`, `http://host:8000`, `wss://host/v1/realtime` or `https://host/a/prefix`, as the
    WebSocket's own URL."""
    parts = _parts(url if "://" in url else f"http://{url}") if isinstance(url, str) else None
    scheme = None if parts is None else _SCHEMES.get(parts.scheme)
    if parts is None or scheme is None:
        raise ValueError(f"{url!r} is no address of a server: expected one such as 'http://127.0.0.1:8000'")
    if "@" in parts.netloc:
        raise ValueError("the address of a server has no user and no password in it: what lets in is a key")
    path = parts.path.rstrip("/").removesuffix(PATH) + PATH
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def _parts(url: str) -> SplitResult | None:
    """None where its host, or its port, is none."""
    try:
        parts = urlsplit(url)
        known = parts.port != 0 and (parts.hostname or "").encode("idna")
    except ValueError:
        return None
    return parts if known else None


def websocket_urls(url: object) -> list[str]:
    """Of a server, or of several."""
    urls = list(url) if isinstance(url, Iterable) and not isinstance(url, str) else [url]
    if not urls:
        raise ValueError("there is no address of a server: expected at least one")
    return [websocket_url(one) for one in urls]


def http_url(url: str, path: str) -> str:
    """Where the same server has something else, beside the WebSocket of any address that leads to that."""
    parts = urlsplit(websocket_url(url))
    scheme = {"ws": "http", "wss": "https"}[parts.scheme]
    return urlunsplit((scheme, parts.netloc, parts.path.removesuffix(PATH) + path, "", ""))
