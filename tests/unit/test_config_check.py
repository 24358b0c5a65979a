"""What no model's configuration can say is found in its words, and what models do say is not."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from transformers import AutoConfig

from engine.model.config_check import MOST, flaw
from engine.sampling.filters import MAX_VOCAB
from tests.fakes.tiny_models import ARCHITECTURES, tiny_model

WHOLE = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
COUNT = "must be a whole number from 1 to 2147483647"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"num_hidden_layers": 0}, f"num_hidden_layers is 0, and {COUNT}"),
        ({"num_hidden_layers": -1}, f"num_hidden_layers is -1, and {COUNT}"),
        ({"num_hidden_layers": True}, f"num_hidden_layers is True, and {COUNT}"),
        ({"num_hidden_layers": 4_000_000}, "num_hidden_layers is 4000000, and 1000 is the most"),
        ({"hidden_size": 0}, f"hidden_size is 0, and {COUNT}"),
        ({"hidden_size": "wide"}, f"hidden_size is 'wide', and {COUNT}"),
        ({"hidden_size": [0] * 999}, "hidden_size is [0, 0,"),
        ({"hidden_size": 66}, "hidden_size is 66, which num_attention_heads (4) does not divide"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 4, which num_key_value_heads (3) does not"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok is 5, of num_experts (4)"),
        ({"head_dim": 3}, "head_dim is 3, and must be even"),
        ({"hidden_size": 12}, "head_dim is 3, and must be even"),
        ({"head_dim": nan}, f"head_dim is nan, and {COUNT}"),
        ({"vocab_size": 2**20}, "vocab_size is 1048576, and 524288 is the most"),
        ({"sliding_window": 2**70}, f"sliding_window is 1180591620717411303424, and {COUNT}"),
        ({"num_experts": -1}, "num_experts is -1, and must be a whole number from 0 to 2147483647"),
        ({"max_position_embeddings": -1}, f"max_position_embeddings is -1, and {COUNT}"),
        ({"rms_norm_eps": nan}, "rms_norm_eps is nan, and must be a number of 0 or more"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small', and must be a number of 0 or more"),
        ({"rope_theta": 0}, "rope_theta is 0, and must be a number above 0"),
        ({"rope_parameters": {"rope_theta": nan}}, "rope_theta is nan, and must be a number above 0"),
        ({"rope_scaling": {"factor": inf}}, "factor is inf, and must be a number above 0"),
        ({"rope_parameters": {"full_attention": {"rope_theta": -5.0}}}, "rope_theta is -5.0, and must be"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>', and must be the number of a token"),
        ({"eos_token_id": [2, "</s>"]}, "eos_token_id is [2, '</s>'], and must be the number of a token"),
        ({"eos_token_id": 2**70}, "eos_token_id is 1180591620717411303424, and must be"),
    ],
    ids=str,
)
def test_a_flaw_is_told_by_its_field(changed: dict[str, Any], why: str) -> None:
    assert flaw(WHOLE) is None
    found = flaw(WHOLE | changed)
    assert found is not None
    assert found.startswith(why)
    assert len(found) < 200


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_models_say_has_none(architecture: str) -> None:
    assert flaw(tiny_model(architecture).config.to_dict()) is None
    assert flaw(AutoConfig.for_model(architecture).to_dict()) is None


def test_a_size_that_heads_do_not_divide_is_none_where_they_have_one_of_their_own() -> None:
    assert flaw(WHOLE | {"hidden_size": 66, "head_dim": 16}) is None
    assert flaw(WHOLE | {"eos_token_id": -1, "head_dim": None, "rope_scaling": None}) is None


def test_a_model_may_say_of_what_it_lacks_that_it_has_none_of_it() -> None:
    dense = {"num_local_experts": 0, "num_experts_per_tok": 0, "moe_intermediate_size": 0}
    assert flaw(WHOLE | dense) is None


def test_what_is_null_is_left_to_who_reads_it() -> None:
    names = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "rope_theta",
        "eos_token_id",
    )
    for name in names:
        assert flaw(WHOLE | {name: None}) is None


def test_no_vocabulary_passes_that_could_not_be_drawn_from() -> None:
    assert MOST["vocab_size"] == MAX_VOCAB
