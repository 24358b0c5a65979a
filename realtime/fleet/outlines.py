"""The outlines of models that are not loaded, as a process of the engine's reads them from their files.

It knows that process and what goes through its pipes. It does not know what an outline is for.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping

import msgspec

from engine import api
from realtime.fleet.watched_engine import EngineFailed

_READ = msgspec.msgpack.Decoder(list[api.Outline | api.Failed])


async def outlines(asked: Mapping[str, api.EngineOptions]) -> dict[str, api.Outline]:
    """By name, as they were asked for. Raises EngineFailed with a sentence that names the model."""
    if not asked:
        return {}
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine.outline", stdin=PIPE, stdout=PIPE
        )
    except OSError as error:
        why = f"no process can be started that reads what models are: {error.strerror}"
        raise EngineFailed(why) from None
    try:
        said, _ = await process.communicate(msgspec.msgpack.encode(list(asked.values())))
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise EngineFailed("the process that reads what models are has failed")
    found = dict[str, api.Outline]()
    for name, outline in zip(asked, _READ.decode(said), strict=True):
        if isinstance(outline, api.Failed):
            raise EngineFailed(f'"{name}": {outline.message}')
        found[name] = outline
    return found
