"""Keys of MessagePack, looked at before anything is made of them."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from realtime.untyped import MOST_PASSED, wrong_keys

FEW = [0, 40, -1, 200, -100, 60_000, -20_000, 1 << 20, -(1 << 20), 1 << 40, -(1 << 40), 1.5, True, None]
SAID: list[Any] = [
    *FEW,
    *("", "a" * 31, "a" * 32, "a" * 300, "a" * 70_000, b"a", b"a" * 300, b"a" * 70_000),
    *(msgspec.msgpack.Ext(5, bytes(size)) for size in (0, 1, 2, 4, 8, 16, 17, 300, 70_000)),
    datetime(2000, 1, 1, tzinfo=UTC),
]
MANY = dict.fromkeys(range(1025))


def _anything(chance: random.Random, depth: int) -> Any:
    of = [_anything(chance, depth - 1) for _ in range(chance.choice([0, 1, 3, 20]))] if depth else []
    match chance.randrange(4):
        case 0:
            return of
        case 1:
            return {str(at): value for at, value in enumerate(of)}
        case 2:
            return [*FEW[:8]] * chance.randrange(12) + of
    return chance.choice(SAID)


@pytest.mark.parametrize("seed", range(30))
def test_every_value_is_passed_over_as_a_whole(seed: int) -> None:
    before = [_anything(random.Random(seed), 3), SAID, {"a": {1: "few"}}]
    strings = {str(key): before for key in range(3)} | {str(key): None for key in MANY}
    assert wrong_keys(msgspec.msgpack.encode([before, strings, [0] * 20_000, before]), 1024) is None
    packed = msgspec.msgpack.encode([before, strings, {"b": MANY}])
    assert wrong_keys(packed, 1024) == "has an object of more than 1024 keys of which one is no string"


def test_what_is_cut_off_is_read_as_far_as_it_goes() -> None:
    packed = msgspec.msgpack.encode([SAID, {str(key): SAID[:20] for key in MANY}])
    for end in [*range(400), *range(len(packed) - 50, len(packed))]:
        assert wrong_keys(packed[:end], 1024) is None


def test_no_more_is_looked_at_than_a_frame_may_have_values() -> None:
    packed = msgspec.msgpack.encode([{str(key): [b""] * 200 for key in MANY}])
    assert str(MOST_PASSED) in (wrong_keys(packed, 1024) or "")


@pytest.mark.parametrize("long", [b"", "a" * 32, msgspec.msgpack.Ext(5, bytes(3)), [0] * 16], ids=type)
def test_what_takes_longer_to_pass_over_counts_as_more(long: Any) -> None:
    many = MOST_PASSED // 3 + 1
    assert wrong_keys(msgspec.msgpack.encode([[]] * (many - 10)), 1024) is None
    assert str(MOST_PASSED) in (wrong_keys(msgspec.msgpack.encode([long] * many), 1024) or "")
