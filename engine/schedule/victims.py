"""Whose memory is taken when somebody needs it.

It knows sequences, and who of them runs in the step that is being planned. It takes nothing from anybody.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.schedule.sequence import Sequence


def victim(sequences: Iterable[Sequence], running: set[int], newcomer: Sequence) -> Sequence | None:
    """Idle holders first, least recently served; then, of those who run, the last that ranks behind.

    `running` are streams that have a row already. Whoever waits for its own memory to arrive keeps it: what
    was given up while it comes would be there too late, and for nobody.
    """
    holders = [
        other
        for other in sequences
        if other.blocks and other is not newcomer and other.stream not in running and not other.arriving
    ]
    idle = [other for other in holders if not other.wants and not other.launched]
    if idle:
        return min(idle, key=lambda other: other.last_served)
    behind = [other for other in holders if _yields(other, newcomer)]
    return min(behind, key=lambda other: (other.priority, -other.stream), default=None)


def _yields(holder: Sequence, newcomer: Sequence) -> bool:
    if holder.priority != newcomer.priority:
        return holder.priority < newcomer.priority
    # Among equals only those who already run may take from those who came later; a newcomer waits.
    return bool(newcomer.blocks) and newcomer.admitted and holder.stream > newcomer.stream
