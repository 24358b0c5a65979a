"""The client's typed errors mirror the protocol's, and its addresses are forgiving."""

from __future__ import annotations

import pytest

import midstream
from midstream import protocol
from midstream.errors import BY_CODE, connection_closed, from_code, from_event
from midstream.protocol import ERRORS, CloseCode, Error
from midstream.url import websocket_url


def test_each_code_of_the_protocol_has_a_class_of_its_own() -> None:
    assert BY_CODE.keys() == ERRORS.keys()
    assert len(set(BY_CODE.values())) == len(ERRORS)
    assert all(getattr(midstream, kind.__name__) is kind for kind in BY_CODE.values())


def test_an_error_event_becomes_its_exception() -> None:
    event = Error(
        status=429,
        code="rate_limited",
        message="later",
        retryable=True,
        retry_after_ms=250,
        request_id="r",
    )
    error = from_event(event)
    assert type(error) is midstream.RateLimited
    assert (error.code, error.status, error.retryable) == ("rate_limited", 429, True)
    assert (error.retry_after_ms, error.request_id, str(error)) == (250, "r", "later")


@pytest.mark.parametrize(("said", "taken"), [(10**400, 86_400_000), (-(10**400), 0)], ids=["late", "past"])
def test_a_time_beyond_all_bounds_is_a_day_or_none(said: int, taken: int) -> None:
    event = Error(status=429, code="rate_limited", message="later", retryable=True, retry_after_ms=said)
    assert from_event(event).retry_after_ms == taken


def test_a_code_of_a_newer_server_is_still_a_request_error() -> None:
    error = from_event(Error(status=418, code="teapot", message="short and stout", retryable=False))
    assert type(error) is midstream.RequestError
    assert (error.code, error.status) == ("teapot", 418)


def test_the_clients_own_refusal_is_the_servers() -> None:
    error = from_code("too_many_streams", "full")
    assert type(error) is midstream.TooManyStreams
    assert (error.status, error.retryable) == (429, True)


@pytest.mark.parametrize("code", [*protocol.RETRYABLE_CLOSE_CODES, 1006])
def test_close_codes_worth_a_retry(code: int) -> None:
    assert connection_closed(code, "").retryable


@pytest.mark.parametrize(
    "code", [1000, 1007, CloseCode.POLICY, CloseCode.NOT_AUTHENTICATED, CloseCode.TAKEN_OVER]
)
def test_close_codes_not_worth_one(code: int) -> None:
    lost = connection_closed(code, "because")
    assert not lost.retryable
    assert lost.code == code
    assert "because" in str(lost)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/realtime"),
        ("127.0.0.1:8000", "ws://127.0.0.1:8000/v1/realtime"),
        ("localhost:8000/llm", "ws://localhost:8000/llm/v1/realtime"),
        ("[::1]:8000", "ws://[::1]:8000/v1/realtime"),
        ("http://localhost/", "ws://localhost/v1/realtime"),
        ("https://api.example.com", "wss://api.example.com/v1/realtime"),
        ("ws://h:1/v1/realtime", "ws://h:1/v1/realtime"),
        ("wss://h/v1/realtime/", "wss://h/v1/realtime"),
        ("https://h/llm/", "wss://h/llm/v1/realtime"),
        ("http://[::1]:8000", "ws://[::1]:8000/v1/realtime"),
    ],
)
def test_addresses(given: str, expected: str) -> None:
    assert websocket_url(given) == expected


@pytest.mark.parametrize("given", ["/path", "ftp://h", "http://", ""])
def test_what_is_no_address_is_refused_in_words(given: str) -> None:
    with pytest.raises(ValueError, match=r"no address of a server: expected one such as"):
        websocket_url(given)


@pytest.mark.parametrize("given", ["http://me:secret@h", "ws://me@h:1", "me:secret@h", "https://:secret@h/"])
def test_an_address_with_a_user_is_refused_without_a_word_of_what_it_says(given: str) -> None:
    """What asks over HTTP took it for a part of the host's name, and the WebSocket sent it beside a key."""
    with pytest.raises(ValueError, match="no user and no password in it") as told:
        websocket_url(given)
    assert "secret" not in str(told.value)
