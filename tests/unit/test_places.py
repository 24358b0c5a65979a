"""The places of engines, as options and files name them."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from realtime import engine_command
from realtime.config import Options, parse, parse_listening
from realtime.fleet import places
from realtime.fleet.address import Address
from realtime.fleet.models_file import entries
from realtime.fleet.place import EnginePlace, PlaceError

ADDRESSES = ["10.0.0.7:7000", "grpc:gpu2:7000", "tls:gpu1.lan:65535", "[::1]:1", "unix:/run/midstream/engine"]


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
    "line",
    [
        "gpu1",
        "gpu1:",
        ":7000",
        "gpu1:65536",
        "a b:1",
        "tls:unix:/a",
        "grpc:unix:/a",
        "tls:grpc:a:1",
        "http://a:1",
    ],
)
def test_what_is_no_address_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(PlaceError, match=r"addresses has .*, which is no address: \[grpc:\]"):
        listed(tmp_path, f"gpu1:7000\n{line}\n")
    with pytest.raises(SystemExit):
        parse(["--fleet", "static", "--engine-addresses", line.replace(" ", "?") + "/"], {})


@pytest.mark.parametrize(
    "address", ["gpu1", ":7000", "gpu1:65536", "tls:gpu1:7000", "grpc:tls:gpu1:7000", "grpc:unix:/a", "7000"]
)
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


@pytest.mark.parametrize("address", ["a:1", "tls:a:1"])
@pytest.mark.parametrize("option", ["engine_ca_file", "engine_cert_file"])
def test_a_file_of_no_certificate_is_named_at_the_start(tmp_path: Path, option: str, address: str) -> None:
    """Else each try to reach an engine would say so, for as long as the server lives."""
    file = tmp_path / "notes"
    file.write_text("nothing that is secret\n")
    options = Options(fleet="static", engine_addresses=address, engine_key_file=str(file))
    said: dict[str, Any] = {option: str(file)}
    with pytest.raises(PlaceError, match=f"the certificate {file} cannot be used"):
        at_start(dataclasses.replace(options, **said))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="nothing here has no end")
@pytest.mark.parametrize("option", ["models", "engine_token_file"])
def test_what_has_no_end_is_not_read_until_memory_has_one(option: str) -> None:
    said: dict[str, Any] = {option: "/dev/zero"}
    with pytest.raises(PlaceError, match="the file /dev/zero cannot be read: File too large"):
        at_start(Options(fleet="static", engine_addresses="a:1", **said))


def test_a_file_without_a_token_is_named(tmp_path: Path) -> None:
    """Else whatever an engine says of it would be said again and again."""
    file = tmp_path / "token"
    file.write_text("# to be written\n")
    with pytest.raises(PlaceError, match=f"the file {file} holds no token"):
        at_start(Options(fleet="static", engine_addresses="a:1", engine_token_file=str(file)))


def test_a_certificate_that_may_not_be_looked_for_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a folder of somebody else's."""

    def forbidden(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "is_file", forbidden)
    file = tmp_path / "authorities"
    with pytest.raises(
        PlaceError, match=f"the file {file} of certificates cannot be read: Permission denied"
    ):
        at_start(Options(fleet="static", engine_addresses="tls:a:1", engine_ca_file=str(file)))


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """As a token that somebody has drawn, and not written down in letters."""
    file = tmp_path / "drawn"
    file.write_bytes(b"\xbf\x00")
    with pytest.raises(PlaceError, match=f"the file {file} cannot be read: it is no text"):
        places.token_in(str(file))
    with pytest.raises(PlaceError, match=f"the file {file} cannot be read: it is no text"):
        at_start(Options(fleet="static", engine_addresses_file=str(file)))


@pytest.mark.parametrize(("addresses", "token"), [("pipe", "file"), ("file", "pipe")])
def test_what_would_be_waited_for_each_time_is_no_file(tmp_path: Path, addresses: str, token: str) -> None:
    """Whoever opened it would wait until somebody writes, in the server's event loop."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    files = Options(
        fleet="static",
        engine_addresses_file=str(tmp_path / addresses),
        engine_token_file=str(tmp_path / token),
    )
    with pytest.raises(PlaceError, match=f"the file {tmp_path}/pipe cannot be read: it is no file"):
        places.listening(files)


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


@pytest.mark.parametrize("words", [["--model"], ["--adapter"], ["--draft-model"]], ids=str)
def test_a_model_that_is_nowhere_is_said_before_anything_is_loaded(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(tmp_path / "none")
    why = f"the engine does not start: no model {name}: it is no folder or GGUF file here"
    with pytest.raises(PlaceError, match=why):
        at_start(parse([*words, name], {}))
    file = tmp_path / "models.toml"
    file.write_text(f'[models.a]\nsource = "toy"\n[models.b]\nsource = "{name}"\nkeep_alive = "5m"\n')
    with pytest.raises(PlaceError, match=f'the engine does not start: "b": no model {name}'):
        at_start(Options(models=str(file)))
    elsewhere = parse([*words, name, "--fleet", "static", "--engine-addresses", "gpu1:7000"], {})
    assert len(at_start(elsewhere)) == 1, "an engine elsewhere has files of its own"
    assert engine_command.main([*words, name, "--listen", f"unix:{tmp_path / 'engine'}"]) == 1
    assert why in capsys.readouterr().err


def test_ctrl_c_ends_an_engine_that_loads_at_once_and_without_a_stack(tmp_path: Path) -> None:
    script = """
import signal, sys, types
loading = types.ModuleType("engine.listening.listen")
loading.listen = lambda *_: signal.raise_signal(signal.SIGINT)
sys.modules[loading.__name__] = loading
from realtime.engine_command import main
main(["--model", "toy", "--listen", sys.argv[1]])
"""
    words = [sys.executable, "-c", script, f"unix:{tmp_path / 'engine'}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_an_address_is_taken_apart() -> None:
    assert Address("[::1]:7000").host_and_port == ("::1", 7000)
    assert Address("tls:gpu1:7000").host_and_port == ("gpu1", 7000)
    assert Address("tls:gpu1:7000").is_tls
    assert not Address("gpu1:7000").is_tls
    for text, is_tls in (("grpc:tls:gpu1:7000", True), ("grpc:gpu1:7000", False)):
        address = Address(text)
        assert (address.is_grpc, address.is_tls, address.place) == (True, is_tls, "gpu1:7000")
    assert Address("unix:/run/engine").path == "/run/engine"
    assert Address("gpu1:7000").path is None


def test_an_engine_that_is_encrypted_by_grpc_is_known_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match="an engine at grpc:tls:a:1 is known by --engine-ca-file: give one"):
        at_start(Options(fleet="static", engine_addresses="grpc:tls:a:1"))


def test_a_path_that_cannot_be_listened_at_is_told_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, why in (
        (tmp_path / ("a" * 108), "AF_UNIX path too long"),
        (tmp_path / "a" / "b", "No such file"),
    ):
        assert engine_command.main(["--listen", f"unix:{path}"]) == 1
        assert f"{path} cannot be listened at: {why}" in capsys.readouterr().err


def test_a_variable_of_an_engine_that_is_misspelt_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MIDSTREAM_KV_TOKNES", "4096")
    assert engine_command.main(["--listen", f"unix:{tmp_path / 'none' / 'engine'}"]) == 1
    assert (
        "MIDSTREAM_KV_TOKNES is none of this engine's, and changes nothing: is MIDSTREAM_KV_TOKENS"
        in caplog.text
    )


def test_a_path_at_which_somebody_listens_stays_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "engine"
    with socket.socket(socket.AF_UNIX) as theirs, socket.socket(socket.AF_UNIX) as somebody:
        theirs.bind(str(path))
        theirs.listen()
        assert engine_command.main(["--model", "toy", "--listen", f"unix:{path}"]) == 1
        assert f"{path} cannot be listened at: Address already in use" in capsys.readouterr().err
        somebody.connect(str(path))


def test_where_grpc_is_missing_both_sides_say_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("grpc", "realtime.fleet.grpc_link", "engine.listening.grpc_door"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(PlaceError, match=r"an engine at grpc:a:1 needs grpcio; .* pip install"):
        at_start(Options(fleet="static", engine_addresses="grpc:a:1"))
    token = tmp_path / "token"
    token.write_text("sesame")
    assert engine_command.main(["--listen", "grpc:127.0.0.1:0", "--token-file", str(token)]) == 1
    assert "--listen grpc:127.0.0.1:0 needs grpcio; in a clone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--tls-ca-file", "a"], "give --tls-cert-file and --tls-key-file too"),
        (
            ["--listen", "unix:/a", "--tls-cert-file", "a", "--tls-key-file", "b"],
            "where nothing is encrypted",
        ),
        (["--tls-cert-file", "a"], "--tls-cert-file and --tls-key-file belong together"),
    ],
)
def test_what_is_wrong_with_an_engines_certificates_is_said(
    options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_listening(["--token-file", "t", *options], {})
    assert why in capsys.readouterr().err


def test_a_gateways_certificate_needs_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--engine-cert-file", "a"], {})
    assert "--engine-cert-file and --engine-key-file belong together" in capsys.readouterr().err
