"""The file of models: what it may say, and each mistake as a sentence that names the file and the key."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from realtime.config import Options, parse
from realtime.fleet import places
from realtime.fleet.models_file import ModelEntry, Scale, entries
from realtime.fleet.place import PlaceError


def read(tmp_path: Path, text: str) -> list[ModelEntry]:
    file = tmp_path / "models.toml"
    file.write_text(text)
    return entries(Options(models=str(file), dtype="bfloat16", threads=3, tool_format="hermes"))


def test_models_are_what_the_file_says_and_else_what_the_server_does(tmp_path: Path) -> None:
    large, small = read(
        tmp_path,
        """
        [models.large]
        source = "/srv/qwen3"
        aliases = ["best", "qwen3:8b"]
        replicas = 2
        dtype = "float32"
        kv_tokens = 4096
        exact = "on"
        kv_idle_s = 10

        [models."org/small"]
        source = "org/small"
        keep_alive = "5m"
        tool_format = "auto"
        """,
    )
    assert (large.name, large.aliases, large.replicas) == ("large", ("best", "qwen3:8b"), 2)
    assert (large.keep_alive_s, large.tool_format) == (None, "hermes")
    made_by = places.engine_options(large.options)
    assert (made_by.model, made_by.name) == ("/srv/qwen3", "large")
    assert (made_by.dtype, made_by.threads, made_by.kv_tokens) == ("float32", 3, 4096)
    assert (made_by.exact, made_by.kv_idle_s) == ("on", 10.0)
    assert (small.name, small.options.dtype, small.keep_alive_s, small.tool_format) == (
        "org/small",
        "bfloat16",
        300.0,
        "auto",
    )


def test_a_file_that_another_program_says_is_told_of_and_read(caplog: pytest.LogCaptureFixture) -> None:
    """As `--models <(...)` in a shell; into another pipe nobody may ever write."""
    with subprocess.Popen(["echo", '[models.large]\nsource = "/srv/qwen3"'], stdout=subprocess.PIPE) as said:
        assert said.stdout is not None
        file = f"/dev/fd/{said.stdout.fileno()}"
        (entry,) = entries(Options(models=file))
    assert entry.name == "large"
    assert f"{file} is no file: it is read to its end now, and never again" in caplog.text


def test_without_a_file_there_is_the_one_that_the_options_name() -> None:
    (entry,) = entries(Options(model="/srv/models/qwen3", engines=3))
    assert (entry.name, entry.replicas, entry.keep_alive_s, entry.aliases) == ("qwen3", 3, None, ())
    (named,) = entries(Options(model="/srv/models/qwen3", model_name="best"))
    assert named.name == "best"


def test_adapters_are_models_of_their_own_that_have_the_bases_options(tmp_path: Path) -> None:
    base, sql, law = read(
        tmp_path,
        """
        [models.base]
        source = "/srv/base"
        aliases = ["b"]
        replicas = 2
        threads = 7

        [models.base.adapters]
        sql = "/srv/sql"
        law = { source = "org/law", keep_alive = "forever", aliases = ["jurist"], threads = 5 }
        """,
    )
    assert (base.name, base.parent, base.options.adapter) == ("base", None, "")
    assert (sql.name, sql.parent, sql.aliases, sql.replicas) == ("base:sql", "base", (), 1)
    assert (sql.options.model, sql.options.adapter, sql.options.threads) == ("/srv/base", "/srv/sql", 7)
    assert sql.keep_alive_s == 300.0
    assert (law.options.model, law.options.adapter, law.options.threads) == ("/srv/base", "org/law", 5)
    assert (law.keep_alive_s, law.aliases, law.options.model_name) == (None, ("jurist",), "base:law")


@pytest.mark.parametrize(
    ("said", "seconds"),
    [('"forever"', None), ('"90s"', 90.0), ('"2h"', 7200.0), ("0", 0.0), ("1.5", 1.5), ('"7"', 7.0)],
)
def test_how_long_a_model_is_kept(tmp_path: Path, said: str, seconds: float | None) -> None:
    (entry,) = read(tmp_path, f'[models.a]\nsource = "toy"\nkeep_alive = {said}\n')
    assert entry.keep_alive_s == seconds


def test_replicas_may_come_and_go_by_a_scale(tmp_path: Path) -> None:
    told, silent = read(
        tmp_path,
        '[models.a]\nsource = "toy"\nreplicas = {min = 2, max = 100, first_token = "500m"}\n'
        '[models.b]\nsource = "toy"\nreplicas = {max = 4}\n',
    )
    assert (told.replicas, told.scale) == (2, Scale(100, 30_000.0))
    assert (silent.replicas, silent.scale) == (1, Scale(4, 1.0))
    with pytest.raises(PlaceError, match='"a" is to have 2 to 100 replicas, and only a fleet that Ray keeps'):
        places.at_start(Options(), [told])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("models", "is no TOML"),
        ("models = " + "[" * 20_000, "is no TOML: it is nested too deep"),
        ("models = " + "1" * 5_000, "is no TOML: a number in it is too long"),
        ('[models.a]\nsource = "a\\u0000b"', "models.a.source: it must be there"),
        ('[models.a]\nsource = "toy"\ndraft_model = "a\\u0000b"', "models.a.draft_model: it is 'a\\x00b'"),
        ("", "models: there is no model: each is a table [models.NAME]"),
        ("port = 1", "port: it is none that this file may have"),
        ("[models]\na = 1", "models.a: it must be a table"),
        ('[models."a b"]\nsource = "toy"', "models.a b: a name has letters, digits"),
        ("[models.a]", "models.a.source: it must be there"),
        ('[models.a]\nsource = "toy"\naliases = "b"', "models.a.aliases: it is 'b'; it must be a list"),
        ('[models.a]\nsource = "toy"\nreplicas = 0', "models.a.replicas: it is 0; it must be a whole number"),
        (
            '[models.a]\nsource = "toy"\nreplicas = {min = 0, max = 2}',
            "models.a.replicas.min: it is 0; it must be a whole number from 1 to 64",
        ),
        (
            '[models.a]\nsource = "toy"\nreplicas = {min = 2}',
            "models.a.replicas.max: it is None; it must be a whole number from 1 to 1024",
        ),
        (
            '[models.a]\nsource = "toy"\nreplicas = {min = 3, max = 2}',
            "models.a.replicas.max: it is 2, which is less than min, 3",
        ),
        (
            '[models.a]\nsource = "toy"\nreplicas = {max = 2, first_token = "soon"}',
            "models.a.replicas.first_token: it is 'soon'; it must be a time such as",
        ),
        (
            '[models.a]\nsource = "toy"\nreplicas = {most = 2}',
            "models.a.replicas.most: replicas have min, max and first_token, and no such key",
        ),
        ('[models.a]\nsource = "toy"\nkeep_alive = "long"', "models.a.keep_alive: it is 'long'; it must be"),
        ('[models.a]\nsource = "toy"\nkeep_alive = -1', "models.a.keep_alive: it is -1; it must be"),
        (
            '[models.a]\nsource = "toy"\ndtype = "int3"',
            "models.a.dtype: it is 'int3'; it must be one of",
        ),
        ('[models.a]\nsource = "toy"\nport = 1', "models.a.port: a model has no such key"),
        ('[models.a]\nsource = "toy"\nmax_streams = 1', "models.a.max_streams: a model has no such key"),
        (
            '[models.a]\nsource = "toy"\nadapters = ["b"]',
            "models.a.adapters: it is ['b']; it must be a table",
        ),
        ('[models.a]\nsource = "toy"\nadapters.b = 1', "models.a.adapters.b: it must be a folder"),
        ('[models.a]\nsource = "toy"\nadapters.b.keep_alive = 0', "models.a.adapters.b.source: it must be"),
        ('[models.a]\nsource = "toy"\nadapters.b = { source = "x", port = 1 }', "models.a.adapters.b.port"),
        (
            '[models.a]\nsource = "toy"\n[models.b]\nsource = "toy"\naliases = ["a"]',
            "aliases: two models are called 'a'",
        ),
    ],
)
def test_what_is_wrong_is_a_sentence(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(PlaceError) as told:
        read(tmp_path, text)
    assert str(told.value).startswith(f"the file {tmp_path / 'models.toml'}")
    assert why in str(told.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match=r"none\.toml cannot be read: No such file"):
        entries(Options(models=str(tmp_path / "none.toml")))


@pytest.mark.parametrize(
    "more",
    [
        ["--engines", "2"],
        ["--engine", "thread"],
        ["--model", "toy"],
        ["--model-name", "a"],
        ["--adapter", "/srv/lora"],
    ],
    ids=str,
)
def test_what_the_file_says_no_option_does(more: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--models", "models.toml", *more], {})
