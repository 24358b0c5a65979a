"""The options of `midstream serve`: where a value comes from, and what is said of one that is not right."""

from __future__ import annotations

import dataclasses
import re

import pytest

from realtime.config import Options, parse, unknown_variables

NAMES = [field.name for field in dataclasses.fields(Options)]


def refusal(capsys: pytest.CaptureFixture[str], argv: list[str], environ: dict[str, str]) -> str:
    """What `parse` says as it refuses: its last line on stderr."""
    with pytest.raises(SystemExit) as exit_:
        parse(argv, environ)
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()[-1]


def test_without_a_word_every_option_has_its_default() -> None:
    assert parse([], {}) == Options()


def test_options_cannot_change_after_they_are_read() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse([], {}).port = 1  # type: ignore[misc]


def test_the_command_line_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"MIDSTREAM_PORT": "9001", "MIDSTREAM_DEVICE": "cpu"}
    options = parse(["--port", "9002"], environ)
    assert (options.port, options.device, options.host) == (9002, "cpu", "127.0.0.1")


ORIGINS = (
    "origins as browsers say them, such as https://app.example: in small letters, without a port that is the"
    " scheme's own, with spaces between"
)


@pytest.mark.parametrize("field", dataclasses.fields(Options), ids=lambda field: field.name)
def test_every_default_is_right_when_it_is_spelled_out(field: dataclasses.Field[object]) -> None:
    spelled = str(field.default)
    flag = "--" + field.name.replace("_", "-")
    for options in (parse([flag, spelled], {}), parse([], {f"MIDSTREAM_{field.name.upper()}": spelled})):
        value = getattr(options, field.name)
        assert value == field.default
        assert type(value) is type(field.default)


def test_an_empty_variable_is_an_unset_one_and_foreign_variables_are_left_alone() -> None:
    assert parse([], {"MIDSTREAM_PORT": "", "MIDSTREAM_URL": "ws://elsewhere", "PORT": "1"}) == Options()


def test_a_variable_that_is_misspelt_is_named_with_the_one_that_is_meant_and_no_value() -> None:
    environ = {"MIDSTREAM_KEY_FILE": "secret", "MIDSTREAM_ZZZ": "secret", "PORT": "1"}
    ours = {f"MIDSTREAM_{name.upper()}": "" for name in NAMES} | {"MIDSTREAM_API_KEY": "secret"}
    near, far = unknown_variables(ours | environ)
    assert "MIDSTREAM_KEY_FILE is none of this server's" in near
    assert near.endswith("is MIDSTREAM_KEYS_FILE meant?")
    assert "MIDSTREAM_ZZZ is none" in far
    assert "--help" in far
    assert "secret" not in near + far
    (near,) = unknown_variables({"MIDSTREAM_TOKENS_FILE": "secret"}, "engine")
    assert near.endswith("is none of this engine's, and changes nothing: is MIDSTREAM_TOKEN_FILE meant?")


def test_help_documents_every_option_with_its_default_and_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(["--help"], {})
    assert exit_.value.code == 0
    words = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "(default )" not in words, "what has none says none"
    for field in dataclasses.fields(Options):
        assert f"--{field.name.replace('_', '-')} " in words
        default = "" if field.default == "" else f"(default {field.default}) "
        assert f"{default}[MIDSTREAM_{field.name.upper()}]" in words


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("port", "65536", "a whole number from 0 to 65535"),
        ("port", "-1", "a whole number from 0 to 65535"),
        ("port", "http", "a whole number from 0 to 65535"),
        *(
            ("host", said, "an address such as 127.0.0.1 or ::1, or a host name, without brackets and port")
            for said in ("[::1]", "127.0.0.1:8000", "localhost:8000", "http://127.0.0.1", "a b")
        ),
        ("block_size", "0", "a whole number from 1 to 1024"),
        ("threads", "1.5", "a whole number from 0 to 1024"),
        ("kv_tokens", "9" * 30, "a whole number from 0 to 2147483647"),
        ("send_timeout_s", "0", "a number from 0.1 to 86400"),
        ("send_timeout_s", "nan", "a number from 0.1 to 86400"),
        ("shutdown_grace_s", "inf", "a number from 0 to 86400"),
        ("dtype", "int8", "one of auto, float32, bfloat16, float16, float64"),
        ("engine", "fork", "one of process, thread"),
        ("device", "cuda:x", "auto, cpu, cuda or cuda:N"),
        ("device", "xcpu", "auto, cpu, cuda or cuda:N"),
        (
            "allowed_hosts",
            "llm.example:443",
            "names such as llm.example, without a port, with spaces between",
        ),
        *(
            ("allowed_hosts", said, "names such as llm.example, without a port, with spaces between")
            for said in ("http://a b", "llm.example,b.example", "*.example", "büro.example")
        ),
        ("allowed_origins", "https://App.example", ORIGINS),
        ("allowed_origins", "https://app.example:443", ORIGINS),
        ("allowed_origins", "http://a.example:8080 http://app.example:80 https://b.example", ORIGINS),
        ("allowed_origins", "https://*.example", ORIGINS),
        ("allowed_origins", "https://app.example/", ORIGINS),
        ("allowed_origins", "https://a.example,b.example", ORIGINS),
        ("allowed_origins", "https://büro.example", ORIGINS),
        ("log_level", "INFO", "one of debug, info, warning, error"),
    ],
)
def test_a_wrong_value_is_named_with_its_option_and_what_would_be_right(
    capsys: pytest.CaptureFixture[str], name: str, value: str, right: str
) -> None:
    flag, variable = "--" + name.replace("_", "-"), f"MIDSTREAM_{name.upper()}"
    for source, argv, environ in ((flag, [f"{flag}={value}"], {}), (variable, [], {variable: value})):
        line = refusal(capsys, argv, environ)
        assert line == f"midstream serve: error: {source} is {value!r}; it must be {right}"


def test_an_empty_value_on_the_command_line_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--model is ''; it must be a known name" in refusal(capsys, ["--model", ""], {})


def test_origins_are_what_browsers_say() -> None:
    origins = "https://app.example http://localhost:8080 http://[::1]:3000  https://app.example:80"
    assert parse(["--allowed-origins", origins], {}).allowed_origins == origins


def test_the_edges_of_a_range_are_right() -> None:
    assert parse(["--port", "0"], {}).port == 0
    assert parse(["--port", "65535"], {}).port == 65535
    assert parse(["--device", "cuda:12"], {}).device == "cuda:12"


@pytest.mark.parametrize("argv", [["--prot", "1"], ["--por", "1"], ["stray"]], ids=str)
def test_what_is_no_option_is_refused_by_name(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert argv[0] in refusal(capsys, argv, {})


def test_a_reader_is_asked_before_its_window_is_full(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, ["--auto-credit-window", "8"], {})
    assert "--ack-every is 16" in line
    assert "at most --auto-credit-window, which is 8" in line
    assert parse(["--auto-credit-window", "8", "--ack-every", "8"], {}).ack_every == 8


@pytest.mark.parametrize("own", [8000, 7998])
def test_a_gateways_own_port_is_not_the_common_one(capsys: pytest.CaptureFixture[str], own: int) -> None:
    words = ["--port", "8000", "--gateways", "3", "--own-port"]
    said = refusal(capsys, [*words, str(own)], {})
    assert f"--port is 8000, and so is one of the 3 from --own-port {own} on" in said
    for right in (7997, 8001):
        assert parse([*words, str(right)], {}).own_port == right
    assert parse(["--port", "0", "--own-port", "8000"], {}).port == 0


# -- who may reach it ------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_without_keys_it_listens_to_this_machine(host: str) -> None:
    assert parse(["--host", host], {}).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "steer.example", "localhost.example"])
def test_it_listens_to_others_with_keys_or_where_that_was_said(
    capsys: pytest.CaptureFixture[str], host: str
) -> None:
    said = refusal(capsys, ["--host", host], {})
    assert f"--host is {host}, which others can reach, and there are no keys" in said
    assert "--keys-file" in said
    assert "--insecure-open" in said
    assert parse(["--host", host, "--keys-file", "keys.toml"], {}).keys_file == "keys.toml"
    assert parse(["--host", host, "--insecure-open"], {}).insecure_open is True
    assert parse(["--host", host], {"MIDSTREAM_INSECURE_OPEN": "1"}).insecure_open is True
    assert "no keys" in refusal(capsys, ["--host", host, "--insecure-open", "false"], {})


def test_a_word_that_is_neither_true_nor_false_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "it must be true or false" in refusal(capsys, ["--insecure-open", "perhaps"], {})
