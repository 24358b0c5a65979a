"""What every Python client is asked, and how it says what came of it: a line of JSON a check.

The model says what stands between the last `⟦` and `⟧` of its conversation. Where nothing does it says
anything at all that the schema lets it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Annotated, Literal

from pydantic import BaseModel, Field

URL = f"{sys.argv[1]}/v1"
QUESTION = (
    "What is the weather in Rome? ⟦<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>⟧'
)
RESULT = "30 degrees ⟦It is 30 degrees in Rome.⟧"
ANSWER = "It is 30 degrees in Rome."
ASK_FOR_A_PET = "Name a pet."


class Pet(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    kind: Literal["cat", "dog"]
    age: Annotated[int, Field(ge=0, le=30)]


def weather(city: str) -> str:
    """The weather of a city."""
    assert city == "Rome", city
    return RESULT


def run(package: str, *checks: Callable[[], Awaitable[None]]) -> None:
    """Each check is named by its docstring."""
    asyncio.run(_run(version(package), *checks))


async def _run(of: str, *checks: Callable[[], Awaitable[None]]) -> None:
    for check in checks:
        trouble = ""
        try:
            await check()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            traceback.print_exc()
            trouble = f"{type(error).__name__}: {error}"[:500]
        print(json.dumps({"version": of, "check": check.__doc__, "trouble": trouble}), flush=True)
