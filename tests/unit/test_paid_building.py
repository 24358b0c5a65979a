"""Whoever has a stream built again pays for it, piece by piece, and others have their turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from realtime.hub.adoptions import _paid_by


class Payer:
    def __init__(self) -> None:
        self.paid: list[float] = []

    async def pay(self, work_s: float) -> None:
        self.paid.append(work_s)


async def test_each_piece_is_paid_for_and_others_have_their_turn_behind_it() -> None:
    payer, done, turns = Payer(), list[int](), list[int]()

    def pieces() -> Iterator[None]:
        for piece in range(5):
            done.append(piece)
            yield

    async def others() -> None:
        while len(done) < 5:
            turns.append(len(done))
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await _paid_by(payer, pieces())  # type: ignore[arg-type]
    await other
    assert len(payer.paid) == 6
    assert all(work_s >= 0 for work_s in payer.paid)
    assert turns == [1, 2, 3, 4]
