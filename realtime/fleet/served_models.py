"""What engines serve, as the gateway needs it: from an engine's hello to a served model, or from
its outline while no engine has it.

It reads a tokenizer once for all engines of a model that have the same files, and anew where those have
changed since: an engine that comes then has what they say now. It knows no engine and no stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from engine import api
from engine.heap import trim_heap
from realtime.fleet.outlines import outlines
from realtime.fleet.watched_engine import EngineFailed
from realtime.text.chat_template import TextError
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import FILES, Tokenizer
from realtime.tools.spelling import AUTO


class _Read(NamedTuple):
    tokenizer: Tokenizer
    files: dict[str, tuple[int, int]]  # of which it was made, by how large they were, and since when


class ServedModels:
    def __init__(
        self,
        made_by: Mapping[str, api.EngineOptions] | None = None,
        tool_formats: Mapping[str, str] | None = None,
    ) -> None:
        """By name: what engines of a model are made by, or where its files are if not where an engine on
        another machine has them; and how it spells calls, if that is known."""
        self._made_by = made_by or {}
        self._tool_formats = tool_formats or {}
        self._tokenizers: dict[tuple[str, str], _Read] = {}  # by model and the engine's folder
        self._reading = asyncio.Lock()

    async def served(self, hello: api.Hello) -> ServedModel:
        return ServedModel(
            hello.model,
            await self._tokenizer_of(hello.model, hello.folder),
            hello.vocab,
            hello.context,
            hello.fingerprint,
            hello.grammars,
            hello.exact,
            f"{hello.weights} by {hello.products}" if hello.weights else None,
        )

    async def outlined(self, names: Sequence[str]) -> list[ServedModel]:
        """What models are that are not loaded. Raises EngineFailed."""
        found = await outlines({name: self._made_by[name] for name in names})
        return [
            ServedModel(
                name,
                await self._tokenizer_of(name, outline.folder),
                outline.vocab,
                outline.context,
                None,
                outline.grammars,
            )
            for name, outline in found.items()
        ]

    async def _tokenizer_of(self, model: str, folder: str) -> Tokenizer:
        async with self._reading:
            key = model, folder
            self._tokenizers[key] = await asyncio.to_thread(self._read, *key, self._tokenizers.get(key))
            return self._tokenizers[key].tokenizer

    def _read(self, model: str, folder: str, known: _Read | None) -> _Read:
        path = Path(folder)
        if not path.is_dir():
            path = Path(self._made_by[model].model if model in self._made_by else "")
        files = _files(path)
        if known is not None and files in ({}, known.files):
            return known
        if not files:
            raise EngineFailed(
                f'it has the files of "{model}" in {folder}: name a copy of them here by --model, and'
                " --model-name where that is called otherwise"
            )
        try:
            return _Read(Tokenizer.load(path, self._tool_formats.get(model, AUTO)), files)
        except TextError as error:
            raise EngineFailed(str(error)) from None
        finally:
            trim_heap()  # to read it takes as much again as to have it


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Nothing where there is no tokenizer."""
    found = {name: (folder / name).stat() for name in FILES if (folder / name).is_file()}
    if FILES[0] not in found:
        return {}
    return {name: (state.st_size, state.st_mtime_ns) for name, state in found.items()}
