"""What engines serve, as the gateway needs it: from an engine's hello to a served model.

It reads a tokenizer once for all engines that serve the same files. It knows no engine and no stream.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine import api
from engine.heap import trim_heap
from realtime.fleet.watched_engine import EngineFailed
from realtime.text.chat_template import TextError
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from realtime.tools.spelling import AUTO


class ServedModels:
    def __init__(self, tool_format: str = AUTO, folder: str = "") -> None:
        """`folder`: where the model's files are, if not where an engine on another machine has them."""
        self._tool_format = tool_format
        self._own_folder = folder
        self._folder: str | None = None
        self._tokenizer: Tokenizer | None = None
        self._reading = asyncio.Lock()

    async def served(self, hello: api.Hello) -> ServedModel:
        return ServedModel(
            hello.model,
            await self._tokenizer_in(hello.folder),
            hello.vocab,
            hello.context,
            hello.fingerprint,
            hello.grammars,
            hello.exact,
            f"{hello.weights} by {hello.products}" if hello.weights else None,
        )

    async def _tokenizer_in(self, folder: str) -> Tokenizer:
        async with self._reading:
            if self._tokenizer is None or self._folder != folder:
                self._tokenizer = await asyncio.to_thread(self._read, folder)
                self._folder = folder
            return self._tokenizer

    def _read(self, folder: str) -> Tokenizer:
        path = Path(folder)
        if not path.is_dir():
            path = Path(self._own_folder)
            if not (path / "tokenizer.json").is_file():
                raise EngineFailed(
                    f"it has its model's files in {folder}: name a copy of them here by --model"
                )
        try:
            return Tokenizer.load(path, self._tool_format)
        except TextError as error:
            raise EngineFailed(str(error)) from None
        finally:
            trim_heap()  # to read it takes as much again as to have it
