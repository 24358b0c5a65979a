"""llama.cpp's own server, out of the package xllamacpp, as a peer that serves one GGUF file over HTTP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import httpx2

SLOTS, CONTEXT = 32, 32 * 1088
SERVER = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_parallel, params.n_ctx = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params.port, params.cache_prompt = 0, False
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


class LlamaCpp:
    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", SERVER, str(self._file), str(SLOTS), str(CONTEXT)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self._address = next(line for line in self._process.stdout if line.startswith("http")).strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    async def times(self, prompts: list[list[int]], tokens: int) -> list[list[float]]:
        """When each token of each stream came, in seconds from when all were asked."""
        limits = httpx2.Limits(max_connections=len(prompts))
        async with httpx2.AsyncClient(base_url=self._address, limits=limits, timeout=None) as client:
            since = time.perf_counter()
            streams = await asyncio.gather(*(self._read(client, prompt, tokens) for prompt in prompts))
        return [[at - since for at in times] for times in streams]

    async def _read(self, client: httpx2.AsyncClient, prompt: list[int], tokens: int) -> list[float]:
        body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        async with client.stream("POST", "/completion", json=body) as response:
            response.raise_for_status()
            return [time.perf_counter() async for line in response.aiter_lines() if '"stop":false' in line]
