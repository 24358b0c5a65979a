"""Layer groups: which layers of a model keep their keys and values together.

Layers that see all and layers that see a window need different blocks of a sequence. They are divided into
groups of equal size, each of one window, so that a block has room for any one group's share of its tokens:
whoever gives blocks out knows one kind of them. It knows windows, and no weights.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import NamedTuple

MOST_GROUPS = 8  # a sequence has a block table for each
MOST_PADDING = 1.15  # places that the groups have, for one that is needed


class LayerGroup(NamedTuple):
    window: int | None  # how many tokens its layers see, the newest included; None sees all
    layers: list[int]


def group_layers(windows: Several[int | None], context: int) -> list[LayerGroup]:
    """Of layers with these windows, those that see all first. A window that no sequence outgrows is none.

    The groups take as little as can be at full length, and hardly more than one group would where sequences
    are short. Where that cannot be had all layers are in one, and keep everything.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(None if window is None or window >= context else window, []).append(layer)
    if len(kinds) == 1:
        return [LayerGroup(*kind) for kind in kinds.items()]

    def groups(size: int) -> list[LayerGroup]:
        return [
            LayerGroup(window, layers[at : at + size])
            for window, layers in sorted(kinds.items(), key=lambda kind: kind[0] is not None)
            for at in range(0, len(layers), size)
        ]

    def tokens_at_full_length(size: int) -> int:
        return size * sum(context if group.window is None else group.window for group in groups(size))

    sizes = [
        size
        for size in range(1, len(windows))
        if len(groups(size)) <= MOST_GROUPS and len(groups(size)) * size <= MOST_PADDING * len(windows)
    ]
    if not sizes:
        return [LayerGroup(None, list(range(len(windows))))]
    return groups(min(sizes, key=lambda size: (tokens_at_full_length(size), -size)))
