"""Tools of a conversation at the terminal: functions that were named on the command line, and their calls
run.

Knows no terminal and no stream.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from midstream.protocol import Message
from midstream.spans import Call
from midstream.tools import Function, run_call, tool_of


class NoTool(ValueError):
    """What was named is no tool; the message says why."""


def load_tool(place: str) -> Function:
    """The function at `FILE.py:function` or `module:function`. Raises NoTool."""
    source, colon, name = place.rpartition(":")
    if not colon:
        raise NoTool(f"{place!r} names no function: expected FILE.py:function, or module:function")
    try:
        function = getattr(_module(source), name)
        tool_of(function)
    except Exception as error:
        raise NoTool(f"{place}: {str(error) or type(error).__name__}") from error
    return function  # type: ignore[no-any-return]


def _module(source: str) -> ModuleType:
    """Modules are looked for where the person stands, too."""
    if not source.endswith(".py"):
        if "" not in sys.path:
            sys.path.insert(0, "")
        return importlib.import_module(source)
    spec = importlib.util.spec_from_file_location(Path(source).stem, source)
    assert spec is not None  # of a name that ends so there always is one
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its classes look themselves up there
    spec.loader.exec_module(module)
    return module


async def answer(call: Call, functions: Sequence[Function]) -> Message:
    """Run it, and tell the model what came of it: also what went wrong, so that it may do better."""
    try:
        return call.answer(await _result(call, functions))
    except Exception as error:  # noqa: BLE001 - whatever it is, the conversation goes on
        return call.answer(f"error: {str(error) or type(error).__name__}")


async def _result(call: Call, functions: Sequence[Function]) -> Any:
    """In a thread, so that a slow function does not hold up the connection."""
    result = await asyncio.to_thread(run_call, call, functions)
    return await result if inspect.isawaitable(result) else result
