"""Tools and agents that were named on the command line, found in Python files. Knows no terminal and no
stream."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from midstream.agent import Agent
from midstream.tools import Function, tool_of

AGENT = "agent"  # the name that it has in its file


class NotFound(ValueError):
    """What was named is no tool, or has no agent; the message says why."""


def load_tool(place: str) -> Function:
    """The function at `FILE.py:function` or `module:function`. Raises NotFound."""
    source, colon, name = place.rpartition(":")
    if not colon:
        raise NotFound(f"{place!r} names no function: expected FILE.py:function, or module:function")
    try:
        function = getattr(_module(source), name)
        tool_of(function)
    except Exception as error:
        raise NotFound(f"{place}: {str(error) or type(error).__name__}") from error
    return function  # type: ignore[no-any-return]


def load_agent(place: str) -> Agent:
    """The agent that `FILE.py` or `module` defines by the name `agent`, or that of `FILE.py:name`. Raises
    NotFound."""
    source, colon, name = place.rpartition(":")
    source, name = (source, name) if colon else (place, AGENT)
    try:
        agent = getattr(_module(source), name)
    except Exception as error:
        raise NotFound(f"{place}: {str(error) or type(error).__name__}") from error
    if not isinstance(agent, Agent):
        raise NotFound(f"{place}: {name} is no midstream.Agent")
    return agent


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
