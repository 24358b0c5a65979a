"""Who listens to which stream: both directions agree, whoever comes and goes."""

from __future__ import annotations

from realtime.hub.subscriptions import Subscriptions


def test_a_stream_is_one_listeners_and_a_listener_has_many() -> None:
    audience = Subscriptions[int, str]()
    assert audience.listener_of(1) is None
    assert audience.subscribe(1, "ann") is None
    assert audience.subscribe(2, "ann") is None
    assert (audience.listener_of(1), audience.listener_of(2)) == ("ann", "ann")


def test_giving_it_to_another_says_whose_it_was() -> None:
    audience = Subscriptions[int, str]()
    audience.subscribe(1, "ann")
    assert audience.subscribe(1, "bob") == "ann"
    assert audience.listener_of(1) == "bob"
    assert audience.remove("ann") == [], "it leaves nothing behind that is another's"
    assert audience.listener_of(1) == "bob"


def test_giving_it_to_whoever_has_it_takes_it_from_nobody() -> None:
    audience = Subscriptions[int, str]()
    audience.subscribe(1, "ann")
    assert audience.subscribe(1, "ann") is None
    assert audience.remove("ann") == [1]


def test_who_goes_leaves_its_streams_in_the_order_in_which_they_came() -> None:
    audience = Subscriptions[int, str]()
    for number in (3, 1, 2):
        audience.subscribe(number, "ann")
    audience.subscribe(4, "bob")
    assert audience.remove("ann") == [3, 1, 2]
    assert [audience.listener_of(number) for number in (1, 2, 3, 4)] == [None, None, None, "bob"]
    assert audience.remove("ann") == []


def test_who_is_released_of_a_stream_leaves_it_no_more() -> None:
    audience = Subscriptions[int, str]()
    audience.subscribe(1, "ann")
    audience.subscribe(2, "ann")
    assert audience.unsubscribe(1) == "ann"
    assert audience.unsubscribe(1) is None
    assert audience.listener_of(1) is None
    assert audience.remove("ann") == [2]


def test_what_was_released_can_be_given_again() -> None:
    audience = Subscriptions[int, str]()
    audience.subscribe(1, "ann")
    audience.unsubscribe(1)
    assert audience.subscribe(1, "bob") is None
    assert audience.remove("bob") == [1]
