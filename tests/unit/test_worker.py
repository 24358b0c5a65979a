"""A worker: whose turn it is, and what a piece does that takes longer than one."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Any

import pytest

from engine.structure.compiler import matcher_of
from engine.structure.constraint import Constraint
from engine.structure.matcher import Matcher
from engine.structure.worker import Worker, give_way, take_long
from midstream.protocol import Grammar
from realtime.text.grammar import source_of
from tests.fakes.small_tokenizers import toy_vocabulary


def work_off(*pieces: tuple[str, Callable[[], Any]]) -> None:
    """Of these owners; the first begins when all were given."""
    worker, given = Worker("test"), threading.Event()
    done = [worker.submit(lambda: given.wait(60))]
    done += [worker.submit(work, owner) for owner, work in pieces]
    given.set()
    wait(done, 60)
    for one in done:
        one.result(0)


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.structure.worker.TURN_S", 0.0)


def test_a_piece_that_takes_long_gives_way_to_others_and_stays_the_first_of_its_own() -> None:
    came = list[str]()

    def long(owner: str) -> None:
        for part in range(3):
            came.append(f"{owner}{part}")
            give_way()

    work_off(
        ("a", lambda: long("a")),
        ("a", lambda: came.append("a, later")),
        ("b", lambda: long("b")),
        ("c", lambda: came.append("c")),
    )
    assert came == ["a0", "b0", "c", "a1", "b1", "a2", "b2", "a, later"]


def test_whoever_follows_a_long_text_gives_way_with_each_token() -> None:
    """An injection of 190 tokens into an ambiguous grammar had everybody else's wait for eight seconds."""
    followed, others = list[int](), list[int]()
    matcher = Matcher(source_of(Grammar(regex="(ab)+")), toy_vocabulary())

    def follow() -> None:
        matcher.accept([*b"ab" * 50])
        followed.append(len(others))

    def other() -> None:
        for _ in range(10):
            others.append(len(followed))
            give_way()

    work_off(("a", follow), ("b", other))
    assert others == [0] * 10, "done before"
    assert followed == [10]


def test_of_what_is_done_a_worker_holds_nothing_until_more_comes() -> None:
    """A stream's grammar counted for its tenant when the stream had long ended: until any other was followed,
    and what was compiled found no room."""
    source, gone = source_of(Grammar(regex="(ab)+")), threading.Semaphore(0)
    constraint = Constraint(source, toy_vocabulary(), 0, lambda: None)
    weakref.finalize(constraint, gone.release)
    worker = Worker("test")
    worker.submit(constraint.submit())
    del constraint
    assert gone.acquire(timeout=10)


def test_what_fails_behind_its_turn_says_so_and_ends_nobody_else() -> None:
    came = list[str]()

    def fail() -> None:
        give_way()
        raise KeyError("a")

    with pytest.raises(KeyError):
        work_off(("a", fail), ("b", lambda: came.append("b")), ("a", lambda: came.append("a")))
    assert came == ["b", "a"]


def test_where_no_more_threads_may_begin_a_piece_goes_on_and_so_do_all_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    came = list[str]()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def long() -> None:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        give_way()
        came.append("a")

    work_off(("a", long), *((one, lambda one=one: came.append(one)) for one in ("b", "c")))
    assert came == ["a", "b", "c"]


def test_what_takes_long_goes_on_among_what_does_and_all_behind_it_meanwhile() -> None:
    slow = Worker("slow")
    quick, go, came = Worker("quick", slow), threading.Event(), list[str]()

    def long() -> None:
        take_long()
        assert go.wait(60)
        take_long()  # is there by now
        came.append("a")

    done = quick.submit(long, "a")
    quick.submit(lambda: came.append("b"), "b").result(60)
    behind = slow.submit(lambda: came.append("c"), "c")
    go.set()
    for one in (done, behind, quick.submit(lambda: None), slow.submit(lambda: None)):
        one.result(60)
    assert (came[0], sorted(came)) == ("b", ["a", "b", "c"])


def test_what_takes_long_stands_in_its_owners_line_whoever_is_worked_for_meanwhile() -> None:
    """Or who has many such pieces would have the turns of all others."""
    placed = threading.Semaphore(0)

    class Slow(Worker):
        def _put(self, piece: Callable[[], bool], owner: object) -> None:
            super()._put(piece, owner)
            placed.release()

    slow = Slow("slow")
    quick, both_wait, go, came = Worker("quick", slow), threading.Event(), threading.Event(), list[str]()

    def long() -> None:
        assert both_wait.wait(60)
        take_long()
        came.append("a")

    done = [slow.submit(lambda: go.wait(60), "c"), quick.submit(long, "a"), quick.submit(lambda: None, "b")]
    both_wait.set()
    for _ in range(2):
        assert placed.acquire(timeout=60)
    done += [slow.submit(partial(came.append, one), one) for one in ("a", "b")]
    go.set()
    for one in done:
        one.result(60)
    assert came == ["a", "b", "a"]


def test_a_grammar_that_is_compiled_again_keeps_nobody_waiting_whose_is_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that lacks states: a number that is to be a multiple of 79,999 had all others' wait for half a
    second, twice."""
    source = source_of(Grammar(regex="[ab]+"))
    quick, go = Worker("quick", Worker("slow")), threading.Event()
    matcher, compiled = Matcher(source, toy_vocabulary()), matcher_of

    def compiles(*asked: Any) -> Any:
        assert go.wait(60)
        return compiled(*asked)

    monkeypatch.setattr("engine.structure.matcher.matcher_of", compiles)
    matcher._fresh.clear()
    mask = quick.submit(matcher.mask, "a")
    assert quick.submit(lambda: True, "b").result(60)
    go.set()
    assert mask.result(60)


def test_where_no_worker_works_there_is_nobody_to_give_way_to() -> None:
    give_way()


def test_what_nobody_asks_for_any_more_is_followed_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stream that was cancelled there were 20 seconds of a processor's time to come, for nobody."""
    followed = list[None]()
    source = source_of(Grammar(regex="(ab)+"))
    constraint = Constraint(source, toy_vocabulary(), 0, lambda: None)

    def ends_meanwhile() -> None:
        followed.append(None)
        if len(followed) == 3:
            constraint.give_up()

    monkeypatch.setattr("engine.structure.follower.give_way", ends_meanwhile)
    constraint.append([*b"ab" * 50], 0)
    constraint.submit()()
    assert len(followed) == 3
    assert constraint.outlook.known


def test_what_nobody_asks_for_any_more_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight streams that were cancelled there were ten seconds, before anybody else's of their tenant."""
    compiled = list[Any]()
    monkeypatch.setattr("engine.structure.matcher.matcher_of", lambda *asked: compiled.append(asked))
    constraint = Constraint(source_of(Grammar(regex="a")), toy_vocabulary(), 0, lambda: None)
    work = constraint.submit()
    constraint.give_up()
    work()
    assert compiled == []
    assert constraint.outlook.known


ENDS_AT_WORK = """
import subprocess
import sys
import threading
from engine.structure.compiler import problem_of
from engine.structure.worker import Worker, give_way

at_work = threading.Event()

def work():
    while True:
        problem_of('start: ("a" | "b" | /[c-z]+/)*')
        at_work.set()
        give_way()

Worker("grammars").submit(work)
at_work.wait()
"""


def test_a_process_ends_in_peace_while_a_grammar_is_worked_at() -> None:
    """It was ended by a fault of memory: a thread came back from the library to no interpreter."""
    ended = subprocess.run([sys.executable, "-c", ENDS_AT_WORK], timeout=60, check=False)
    assert ended.returncode == 0
