"""What no model's configuration can say: numbers that end the process, or hang it, in whatever library comes
upon them first. It knows the names that transformers has for them, and no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

COUNTS = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "sliding_window",
)
# Of these 0 is none, as the dense sisters of mixtures of experts say it.
COUNTS_OR_NONE = (
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
# Each is made, or named, before anybody looks for weights: far more than any model has takes hours.
MOST = {"num_hidden_layers": 1_000, "vocab_size": 2**19}  # of the latter no more could be drawn from
LAST = 2**31 - 1  # that messages and tensors of whole numbers have room for
ROTATION = ("rope_theta", "factor")  # positive wherever there are any


def flaw(config: Mapping[str, Any]) -> str | None:
    """What is wrong with it, in words that begin with a field; None where nothing is."""
    return next(_flaws(config), None)


def _flaws(config: Mapping[str, Any]) -> Iterator[str]:
    for names, least in ((COUNTS, 1), (COUNTS_OR_NONE, 0)):
        for name in names:
            value = config.get(name)
            if value is not None and not (_is_whole(value) and least <= value <= LAST):
                yield f"{name} is {_shown(value)}, and must be a whole number from {least} to {LAST}"
    for name, most in MOST.items():
        if (config.get(name) or 0) > most:
            yield f"{name} is {config[name]}, and {most} is the most that can be served"
    yield from _heads(config)
    yield from _experts(config)
    epsilon = config.get("rms_norm_eps")
    if epsilon is not None and not (_is_number(epsilon) and epsilon >= 0):
        yield f"rms_norm_eps is {_shown(epsilon)}, and must be a number of 0 or more"
    for rope in _ropes(config):
        for name in ROTATION:
            value = rope.get(name)
            if value is not None and not (_is_number(value) and value > 0):
                yield f"{name} is {_shown(value)}, and must be a number above 0"
    yield from end_token_flaws(config)


def end_token_flaws(config: Mapping[str, Any]) -> Iterator[str]:
    """Of a configuration for generating, too. Some models have -1 for none."""
    ends = config.get("eos_token_id")
    several = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(_is_whole(end) and -1 <= end <= LAST for end in several):
        yield f"eos_token_id is {_shown(ends)}, and must be the number of a token, or a list of such numbers"


def _heads(config: Mapping[str, Any]) -> Iterator[str]:
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    shared = config.get("num_key_value_heads")
    if hidden and heads and not config.get("head_dim") and hidden % heads:
        yield f"hidden_size is {hidden}, which num_attention_heads ({heads}) does not divide"
    size = config.get("head_dim") or (heads and hidden and hidden // heads)
    if size and size % 2:
        yield f"head_dim is {size}, and must be even: one half is rotated against the other"
    if heads and shared and heads % shared:
        yield f"num_attention_heads is {heads}, which num_key_value_heads ({shared}) does not divide"


def _experts(config: Mapping[str, Any]) -> Iterator[str]:
    chosen = config.get("num_experts_per_tok") or 0
    for name in ("num_experts", "num_local_experts"):
        if chosen > (config.get(name) or chosen):
            yield f"num_experts_per_tok is {chosen}, of {name} ({config[name]})"


def _ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Wherever a rotation is described: at the top, or as one, or as one of each kind of layer."""
    yield config
    for name in ("rope_parameters", "rope_scaling"):
        described = config.get(name)
        if isinstance(described, dict):
            yield described
            yield from (each for each in described.values() if isinstance(each, dict))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and isfinite(value))


def _shown(value: Any) -> str:
    """Short, whatever it is."""
    return repr(value)[:80]
