"""Who listens to which stream: both directions agree, whoever comes and goes."""

from __future__ import annotations

from realtime.hub.subscriptions import Audience


def test_a_stream_is_one_listeners_and_a_listener_has_many() -> None:
    audience = Audience[str]()
    assert audience.of(1) is None
    assert audience.give(1, "ann") is None
    assert audience.give(2, "ann") is None
    assert (audience.of(1), audience.of(2)) == ("ann", "ann")


def test_giving_it_to_another_says_whose_it_was() -> None:
    audience = Audience[str]()
    audience.give(1, "ann")
    assert audience.give(1, "bob") == "ann"
    assert audience.of(1) == "bob"
    assert audience.leave("ann") == [], "it leaves nothing behind that is another's"
    assert audience.of(1) == "bob"


def test_giving_it_to_whoever_has_it_takes_it_from_nobody() -> None:
    audience = Audience[str]()
    audience.give(1, "ann")
    assert audience.give(1, "ann") is None
    assert audience.leave("ann") == [1]


def test_who_goes_leaves_its_streams_in_the_order_in_which_they_came() -> None:
    audience = Audience[str]()
    for number in (3, 1, 2):
        audience.give(number, "ann")
    audience.give(4, "bob")
    assert audience.leave("ann") == [3, 1, 2]
    assert [audience.of(number) for number in (1, 2, 3, 4)] == [None, None, None, "bob"]
    assert audience.leave("ann") == []


def test_who_is_released_of_a_stream_leaves_it_no_more() -> None:
    audience = Audience[str]()
    audience.give(1, "ann")
    audience.give(2, "ann")
    assert audience.release(1) == "ann"
    assert audience.release(1) is None
    assert audience.of(1) is None
    assert audience.leave("ann") == [2]


def test_what_was_released_can_be_given_again() -> None:
    audience = Audience[str]()
    audience.give(1, "ann")
    audience.release(1)
    assert audience.give(1, "bob") is None
    assert audience.leave("bob") == [1]
