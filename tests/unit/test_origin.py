"""Pages that may connect, and pages that may not."""

from __future__ import annotations

import pytest

from realtime.access.origin import allowed

HOST = {"host": "127.0.0.1:8000"}


def test_programs_and_our_own_page_may_connect() -> None:
    assert allowed(HOST)
    assert allowed(HOST | {"origin": "http://127.0.0.1:8000"})
    assert allowed({"host": "localhost:8000", "origin": "http://localhost:8000"})
    assert allowed({"host": "[::1]:8000", "origin": "http://[::1]:8000"})


@pytest.mark.parametrize(
    "name", ["steer.example", "steer.example:8000", "localhost.evil.example", "127.0.0.1.nip.example"]
)
def test_a_name_may_have_been_pointed_here_by_whoever_owns_it(name: str) -> None:
    """Where a key is needed that gains them nothing; where none is, the name must be allowed by name."""
    page = {"host": name, "origin": f"https://{name}"}
    assert not allowed(page)
    assert allowed(page, any_name=True)
    assert allowed(page, (f"https://{name}",))


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://127.0.0.1",
        "http://127.0.0.1:8001",
        "http://127.0.0.1:8000.evil.example",
        "http://user@127.0.0.1:8000",
        "file://127.0.0.1:8000",
        "null",
        "",
    ],
)
def test_any_other_page_may_not(origin: str) -> None:
    assert not allowed(HOST | {"origin": origin})


def test_an_origin_that_was_named_may_connect_and_only_that() -> None:
    named = ("https://app.example",)
    assert allowed(HOST | {"origin": "https://app.example"}, named)
    assert not allowed(HOST | {"origin": "http://app.example"}, named)
    assert not allowed(HOST | {"origin": "https://app.example.evil"}, named)
