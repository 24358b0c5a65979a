"""The places of engines, as options and files name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from realtime.config import Options, parse, parse_listening
from realtime.fleet import places
from realtime.fleet.fleet import EnginePlace, PlaceError
from realtime.fleet.models_file import entries
from realtime.fleet.socket_link import Address

ADDRESSES = ["10.0.0.7:7000", "tls:gpu1.lan:65535", "[::1]:1", "unix:/run/midstream/engine"]


def at_start(options: Options) -> list[EnginePlace]:
    return places.at_start(options, entries(options))


def listed(tmp_path: Path, text: str, named: str = "") -> list[str]:
    file = tmp_path / "addresses"
    file.write_text(text)
    options = Options(fleet="static", engine_addresses=named, engine_addresses_file=str(file))
    found = at_start(options)
    assert not any(place.ours for place in found)
    return [place.name.removeprefix("the engine at ") for place in found]


def test_engines_are_where_the_options_and_their_file_say(tmp_path: Path) -> None:
    text = "# of the first rack\n\n" + "\n".join(f"  {address}  # here" for address in ADDRESSES) + "\n"
    assert listed(tmp_path, text) == ADDRESSES
    assert listed(tmp_path, "", " ".join(ADDRESSES)) == ADDRESSES
    assert listed(tmp_path, text, "gpu0:7000 10.0.0.7:7000") == ["gpu0:7000", *ADDRESSES], "each once"
    assert listed(tmp_path, "# none yet") == []


@pytest.mark.parametrize(
    "line", ["gpu1", "gpu1:", ":7000", "gpu1:65536", "a b:1", "tls:unix:/a", "http://a:1"]
)
def test_what_is_no_address_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(PlaceError, match=r"addresses has .*, which is no address: HOST:PORT, tls:HOST:PORT"):
        listed(tmp_path, f"gpu1:7000\n{line}\n")
    with pytest.raises(SystemExit):
        parse(["--fleet", "static", "--engine-addresses", line.replace(" ", "?") + "/"], {})


@pytest.mark.parametrize("address", ["gpu1", ":7000", "gpu1:65536", "tls:gpu1:7000", "7000"])
def test_an_engine_listens_at_no_such_address(address: str) -> None:
    with pytest.raises(SystemExit):
        parse_listening(["--token-file", "t", "--listen", address], {})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "none"
    with pytest.raises(PlaceError, match=f"the file {file} cannot be read: No such file or directory"):
        at_start(Options(fleet="static", engine_addresses_file=str(file)))
    with pytest.raises(PlaceError, match=f"the file {file} cannot be read"):
        places.token_in(str(file))
    with pytest.raises(PlaceError, match=f"the file {file} of certificates cannot be read"):
        at_start(Options(fleet="static", engine_addresses="tls:a:1", engine_ca_file=str(file)))


def test_a_token_is_what_its_file_says_but_for_comments(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("# of the fleet\n  sesame \n\n")
    assert places.token_in(str(file)) == "sesame"
    assert places.token_in("") == ""


def test_engines_of_ours_share_the_machines_threads() -> None:
    one, several = at_start(Options()), at_start(Options(engines=3))
    assert [place.name for place in one] == ["the engine"]
    assert [place.name for place in several] == ["engine 0", "engine 1", "engine 2"]
    assert all(place.ours for place in several)


def test_an_address_is_taken_apart() -> None:
    assert Address("[::1]:7000").host_and_port == ("::1", 7000)
    assert Address("tls:gpu1:7000").host_and_port == ("gpu1", 7000)
    assert Address("tls:gpu1:7000").is_tls
    assert not Address("gpu1:7000").is_tls
    assert Address("unix:/run/engine").path == "/run/engine"
    assert Address("gpu1:7000").path is None
