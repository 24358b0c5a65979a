"""A server without keys: by which names it may be called, and that it is not to stand behind a proxy."""

from __future__ import annotations

import pytest

from realtime.access.keyless import FORWARDED, KeylessRules
from realtime.refusal import Refusal

RULES = KeylessRules(("box.lan",))


def refused(headers: dict[str, str], rules: KeylessRules = RULES) -> str:
    with pytest.raises(Refusal) as caught:
        rules.check(headers)
    assert (caught.value.status, caught.value.code) == (403, "forbidden")
    return caught.value.message


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:8000", "10.1.2.3:8000", "[::1]:8000", "[fe80::1]", "0.0.0.0:8000"),
        *("localhost", "LOCALHOST:8000", "page.localhost:8000"),
        *("box.lan", "Box.LAN:8000"),
        "",  # HTTP/1.0, as some probes speak it; every browser says a name
    ],
)
def test_an_address_cannot_be_pointed_elsewhere_and_some_names_are_known(host: str) -> None:
    RULES.check({"host": host})


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evilocalhost",
        ),
        *(
            "box.lan.evil.example",
            "user@127.0.0.1",
            "user@localhost:8000",
            "localhost.",
            "127.0.0.1:8000:evil",
        ),
        *(
            "[",
            "]",
            "[]",
            "[::1",
            "::1",
            "[:::::]",
            "[evil.example]",
            "[::1]evil.example",
            " ",
            ":8000",
            "\u00e9",
        ),
    ],
)
def test_any_other_name_may_have_been_pointed_here(host: str) -> None:
    said = refused({"host": host})
    assert "--allowed-hosts" in said
    assert "--keys-file" in said
    refused({"host": host}, KeylessRules(insecure_open=True))


@pytest.mark.parametrize("name", FORWARDED)
def test_what_came_through_a_proxy_is_refused_unless_it_is_open_to_all(name: str) -> None:
    headers = {"host": "127.0.0.1:8000", name: "198.51.100.7"}
    said = refused(headers)
    assert f"`{name}`" in said
    assert "--keys-file" in said
    assert "--insecure-open" in said
    KeylessRules(insecure_open=True).check(headers)
