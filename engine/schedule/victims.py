"""Victim selection: whose blocks are taken when another sequence needs memory.

It knows sequences, and which of them run in the step that is being planned. It evicts nobody.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.schedule.sequence import Sequence


def choose_victim(sequences: Iterable[Sequence], running: set[int], newcomer: Sequence) -> Sequence | None:
    """Idle holders first, least recently served; then, of those who run, the last that ranks behind.

    `running` are streams that have a row already. Whoever waits for its own blocks to be loaded keeps them:
    what was taken meanwhile would be there too late, and for nobody.
    """
    holders = [
        other
        for other in sequences
        if other.blocks and other is not newcomer and other.stream not in running and not other.pending_load
    ]
    idle = [other for other in holders if not other.num_to_compute and not other.num_in_flight]
    if idle:
        return min(idle, key=lambda other: other.last_served)
    behind = [other for other in holders if _gives_way(other, newcomer)]
    return min(behind, key=lambda other: (other.priority, -other.stream), default=None)


def _gives_way(holder: Sequence, newcomer: Sequence) -> bool:
    if holder.priority != newcomer.priority:
        return holder.priority < newcomer.priority
    # Among equals only those who already run may take from those who came later; a newcomer waits.
    return bool(newcomer.blocks) and newcomer.admitted and holder.stream > newcomer.stream
