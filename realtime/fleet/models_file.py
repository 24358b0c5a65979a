"""The file of models (`--models`): which there are, what each is made by, and how long it stays loaded.

It knows TOML and the options that a model may have of its own. Whatever is wrong is one sentence that names
the file and the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from realtime.config import ModelOptions, Options, option_of_a_model
from realtime.endless_files import content_of, tell_if_endless
from realtime.fleet.place import PlaceError
from realtime.toml_text import NotTomlError, tables_of

NAME = r"[\w.:-][\w.:/-]{0,127}"
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
FOREVER = "forever"
MOST_REPLICAS, MOST_SCALED = 64, 1024
FIRST_TOKEN_S = 1.0
OWN = ("source", "aliases", "replicas", "keep_alive", "adapters")
ADAPTERS_KEEP_ALIVE = "5m"


class Scale(NamedTuple):
    """How many engines a model may have while it is loaded, beyond those that it has from the start."""

    most: int
    first_token_s: float  # more of them come where a first token would wait for longer


class ModelEntry(NamedTuple):
    """A model of this server."""

    name: str
    options: ModelOptions  # that its engines are made by
    tool_format: str
    aliases: tuple[str, ...] = ()
    replicas: int = 1  # at least, where it has a scale
    scale: Scale | None = None
    keep_alive_s: float | None = None  # None is for ever
    parent: str | None = None  # of an adapter, the model that it changes


def entries(options: Options) -> list[ModelEntry]:
    """Those of the file, or the one that the options name."""
    if not options.models:
        name = options.model_name or Path(options.model).name
        return [ModelEntry(name, options, options.tool_format, replicas=options.engines)]
    file = Path(options.models)
    tell_if_endless(file)
    try:
        tables = tables_of(content_of(file))
    except OSError as error:
        raise PlaceError(f"the file {file} cannot be read: {error.strerror}") from None
    except NotTomlError as error:
        raise PlaceError(f"the file {file} is no TOML: {error}") from None
    return _Reader(options).entries(tables)


class _Reader:
    def __init__(self, options: Options) -> None:
        self._options = options

    def entries(self, tables: Mapping[str, Any]) -> list[ModelEntry]:
        if unknown := sorted(tables.keys() - {"models"}):
            raise self._wrong(unknown[0], "it is none that this file may have: each model is [models.NAME]")
        models = tables.get("models")
        if not isinstance(models, dict) or not models:
            raise self._wrong("models", "there is no model: each is a table [models.NAME]")
        found = [entry for name, table in models.items() for entry in self._entries(name, table)]
        names = [name for entry in found for name in (entry.name, *entry.aliases)]
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise self._wrong("aliases", f"two models are called {twice!r}")
        return found

    def _entries(self, name: str, table: Any) -> Iterator[ModelEntry]:
        """A model, and those that are made of it by adapters."""
        key = f"models.{name}"
        yield (base := self._entry(name, table, key))
        adapters = table.get("adapters", {})
        if not isinstance(adapters, dict):
            raise self._wrong(f"{key}.adapters", f"it is {adapters!r}; it must be a table")
        of_base = {option: value for option, value in table.items() if option not in OWN}
        for adapter, said in adapters.items():
            own = {"source": said} if isinstance(said, str) else said
            if not isinstance(own, dict) or "adapters" in own:
                raise self._wrong(
                    f"{key}.adapters.{adapter}", "it must be a folder, or a table with a source"
                )
            whole = {"keep_alive": ADAPTERS_KEEP_ALIVE, **of_base, **own}
            entry = self._entry(f"{name}:{adapter}", whole, f"{key}.adapters.{adapter}")
            options = replace(entry.options, model=base.options.model, adapter=entry.options.model)
            yield entry._replace(options=options, parent=name)

    def _entry(self, name: str, table: Any, key: str) -> ModelEntry:
        if not isinstance(table, dict):
            raise self._wrong(key, "it must be a table")
        if not re.fullmatch(NAME, name):
            raise self._wrong(key, "a name has letters, digits and . : - _ /, at most 128 of them")
        source = table.get("source")
        if not isinstance(source, str) or not source or "\0" in source:
            raise self._wrong(f"{key}.source", "it must be there: a known name, a local folder or a hub id")
        aliases = table.get("aliases", [])
        if not isinstance(aliases, list) or not all(
            isinstance(alias, str) and re.fullmatch(NAME, alias) for alias in aliases
        ):
            raise self._wrong(f"{key}.aliases", f"it is {aliases!r}; it must be a list of names")
        replicas, scale = self._replicas(f"{key}.replicas", table.get("replicas", 1))
        values, tool_format = self._values(key, table)
        return ModelEntry(
            name,
            replace(self._options, model=source, model_name=name, **values),
            tool_format,
            tuple(aliases),
            replicas,
            scale,
            self._keep_alive(f"{key}.keep_alive", table.get("keep_alive", FOREVER)),
        )

    def _values(self, key: str, table: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """The options that it has otherwise than the server."""
        values: dict[str, Any] = {"tool_format": self._options.tool_format}
        for name, value in table.items():
            if name in OWN:
                continue
            row = option_of_a_model(name)
            if row is None:
                raise self._wrong(f"{key}.{name}", "a model has no such key")
            try:
                values[name] = row.read(str(value))
            except ValueError:  # msgspec's ValidationError is one
                raise self._wrong(f"{key}.{name}", f"it is {value!r}; it must be {row.right}") from None
        return values, values.pop("tool_format")

    def _replicas(self, key: str, value: Any) -> tuple[int, Scale | None]:
        if not isinstance(value, dict):
            return self._count(key, value), None
        if unknown := sorted(value.keys() - {"min", "max", "first_token"}):
            raise self._wrong(
                f"{key}.{unknown[0]}", "replicas have min, max and first_token, and no such key"
            )
        least = self._count(f"{key}.min", value.get("min", 1))
        most = self._count(f"{key}.max", value.get("max"), most=MOST_SCALED)
        if most < least:
            raise self._wrong(f"{key}.max", f"it is {most}, which is less than min, {least}")
        first_token_s = _seconds(value.get("first_token", FIRST_TOKEN_S))
        if not first_token_s:
            raise self._wrong(
                f"{key}.first_token", f'it is {value["first_token"]!r}; it must be a time such as "1s" or 0.5'
            )
        return least, Scale(most, first_token_s)

    def _count(self, key: str, value: Any, *, most: int = MOST_REPLICAS) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self._wrong(key, f"it is {value!r}; it must be a whole number from 1 to {most}")
        return value

    def _keep_alive(self, key: str, value: Any) -> float | None:
        if value == FOREVER:
            return None
        seconds = _seconds(value)
        if seconds is None:
            raise self._wrong(
                key, f'it is {value!r}; it must be "{FOREVER}", or a time such as "5m", "90s" or 0'
            )
        return seconds

    def _wrong(self, key: str, why: str) -> PlaceError:
        return PlaceError(f"the file {self._options.models}, {key}: {why}")


def _seconds(value: Any) -> float | None:
    """None where it is no time."""
    told = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
    return None if told is None or isinstance(value, bool) else float(told[1]) * UNITS[told[2]]
