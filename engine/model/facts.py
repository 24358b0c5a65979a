"""Model facts: shape, context length, attention windows and end tokens, which the engine plans by.

Read from the configuration alone. It knows transformers' config classes, and no weights.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from transformers import GenerationConfig, PreTrainedConfig

# Which model classes slide their attention: in every layer, or in those that `layer_types` names.
EVERY_LAYER_SLIDES = {"mistral", "phi3", "qwen3_moe"}
SOME_LAYERS_SLIDE = {"qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_oss"}


class ModelFacts(Struct, frozen=True, kw_only=True):
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    context: int  # tokens, prompt and output together
    windows: list[
        int | None
    ]  # a layer: how many tokens its attention sees, the newest included; None sees all
    eos: list[int]

    @property
    def kv_numbers_per_token(self) -> int:
        """How many numbers one token leaves in the KV cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def describe(config: PreTrainedConfig, generation: GenerationConfig | None = None) -> ModelFacts:
    """`generation` is the model's generation config: where it names end tokens, it is the one that holds."""
    heads = config.num_attention_heads
    return ModelFacts(
        architecture=config.model_type,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        hidden=config.hidden_size,
        vocab=config.vocab_size,
        context=_context(config),
        windows=_windows(config),
        eos=_ids(getattr(generation, "eos_token_id", None)) or _ids(config.eos_token_id),
    )


def _windows(config: PreTrainedConfig) -> list[int | None]:
    window = getattr(config, "sliding_window", None)
    if config.model_type in EVERY_LAYER_SLIDES:
        return [window] * config.num_hidden_layers
    if config.model_type in SOME_LAYERS_SLIDE:
        return [window if kind == "sliding_attention" else None for kind in config.layer_types]
    return [None] * config.num_hidden_layers


def _context(config: PreTrainedConfig) -> int:
    """How long a sequence may grow with every position meaning the same, whoever else is in the batch.

    Yarn stretches what the model was trained on, and `max_position_embeddings` may or may not say so.
    Longrope changes all frequencies once any sequence of the batch outgrows the original length: we stay
    below. Dynamic NTK does so beyond `max_position_embeddings`, which is our limit anyway.
    """
    limit = int(config.max_position_embeddings)
    for rope in _ropes(config):
        original = int(rope.get("original_max_position_embeddings") or limit)
        if rope.get("rope_type") == "longrope":
            limit = min(limit, original)
        elif rope.get("rope_type") == "yarn":
            limit = max(limit, int(original * rope.get("factor", 1.0)))
    return limit


def _ropes(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """The rope parameters: one set of them, or one a kind of layer."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]


def _ids(value: int | list[int] | None) -> list[int]:
    return [value] if isinstance(value, int) else sorted(set(value or []))
