"""Scripts: what the model of `scripted_engine` is told to say."""

from __future__ import annotations

from typing import Any

from tests.fakes.spelt_calls import SPELT


def saying(*answers: str) -> str:
    """A question to which it says this, and the next behind each injection."""
    return f"Say ⟦{'⏭'.join(answers)}⟧"


def spelt(arguments: dict[str, Any], name: str = "weather") -> str:
    """A call, as its chat template has them."""
    return SPELT["hermes"]([(name, arguments)])
