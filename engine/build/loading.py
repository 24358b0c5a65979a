"""Loads a model by the library that is to compute it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine import api
from engine.forward.attention import NAME
from engine.model.loading import load
from engine.model.names import resolve

if TYPE_CHECKING:
    from engine.build.components import ServedModel


def load_by_width(options: api.EngineOptions, folder: Path, width: str | None, place: str) -> ServedModel:
    """`width`: of the weights, where ggml computes."""
    if width is not None:
        from engine.ggml import loading as ggml_loading

        return ggml_loading.load(folder, width)
    model = load(folder, dtype=options.dtype, device=place, attention=NAME, devices=options.devices)
    if options.adapter:
        from engine.model import adapter

        adapter.merge(model, resolve(options.adapter))
    return model
