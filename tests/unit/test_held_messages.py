"""What is held of messages is counted by whoever sends them."""

from __future__ import annotations

from realtime.transport.held_messages import SMALL, HeldMessages


def test_what_is_large_counts_for_its_payer_until_it_is_gone() -> None:
    held = HeldMessages()
    first = held.count("alice", 0, SMALL + 1)
    second = held.count("alice", 0, 2 * SMALL)
    assert held.of("alice") == 3 * SMALL + 1
    assert held.of("bob") == 0
    first = held.count("alice", first, SMALL)
    assert (first, held.of("alice")) == (0, 2 * SMALL), "what is small does not count"
    held.count("alice", second, 0)
    assert held.of("alice") == 0
    assert not held._bytes, "of whom nothing is held nothing is kept"
