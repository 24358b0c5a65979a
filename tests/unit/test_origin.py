"""Pages that may ask, and pages that may not."""

from __future__ import annotations

import pytest

from realtime.access.origin import allowed

HOST = {"host": "127.0.0.1:8000"}
NOT_ORIGINS = [
    "null",
    "",
    "http://",
    "https://",
    "http://[",
    "http://[::1",
    "http://]:8000",
    "//",
    "\u00e9://\x00",
]


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "steer.example"])
def test_programs_and_our_own_page_may_ask(host: str) -> None:
    assert allowed({"host": host})
    assert allowed({"host": host, "origin": f"http://{host}"})
    assert allowed({"host": host, "origin": f"https://{host}"}), "what carries TLS stands before us"


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://127.0.0.1",
        "http://127.0.0.1:8001",
        "http://127.0.0.1:8000.evil.example",
        "http://user@127.0.0.1:8000",
        "http://127.0.0.1:8000/",
        "file://127.0.0.1:8000",
        *NOT_ORIGINS,
    ],
)
def test_any_other_page_may_not(origin: str) -> None:
    assert not allowed(HOST | {"origin": origin})
    assert not allowed(HOST | {"origin": origin, "sec-fetch-site": "same-origin"})


@pytest.mark.parametrize("origin", NOT_ORIGINS)
@pytest.mark.parametrize("host", [{}, {"host": ""}, {"host": "evil.example["}])
def test_what_is_no_origin_belongs_to_no_host(host: dict[str, str], origin: str) -> None:
    assert not allowed(host | {"origin": origin})


def test_an_origin_that_was_named_may_ask_and_only_that() -> None:
    named = ("https://app.example",)
    assert allowed(HOST | {"origin": "https://app.example", "sec-fetch-site": "cross-site"}, named)
    assert not allowed(HOST | {"origin": "http://app.example"}, named)
    assert not allowed(HOST | {"origin": "https://app.example.evil"}, named)


@pytest.mark.parametrize(
    ("site", "may"), [("none", True), ("same-origin", True), ("same-site", False), ("cross-site", False)]
)
def test_what_a_page_gets_without_saying_its_origin_is_told_by_the_browser(site: str, may: bool) -> None:
    """An image, a script, a frame, a link; an allowed origin does not show there, and so does not count."""
    assert allowed(HOST | {"sec-fetch-site": site}, ("https://app.example",)) is may
