"""Which models ggml computes here: Llama's family, as configurations name it.

Apart from what computes it, so that whoever only asks compiles and loads nothing.
"""

from __future__ import annotations

from typing import Any

FAMILY = ("llama", "mistral", "qwen2", "qwen3")  # by transformers' names


def why_not(config: dict[str, Any]) -> str | None:
    """Why a model of this configuration is not computed here, if so."""
    if config.get("model_type") not in FAMILY:
        return f"ggml computes {', '.join(FAMILY)} here, and the architecture is {config.get('model_type')}"
    if (activation := config.get("hidden_act", "silu")) != "silu":
        return f"ggml computes silu here, and the activation is {activation}"
    return None
