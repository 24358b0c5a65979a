"""The watch over an engine that listens: when it is thought to hang, and what becomes of its process."""

from __future__ import annotations

import subprocess
import sys

from engine.listening.hang_watch import HangWatch

AFTER_S = 60

HANGING = """
import logging
from threading import Event
from engine.listening.hang_watch import HangWatch

logging.basicConfig()
watch = HangWatch(0)
watch.start()

def compute():
    Event().wait()

watch.sending(lambda what: compute())("a command")
"""


def test_one_that_is_sent_nothing_may_say_nothing() -> None:
    assert not HangWatch(AFTER_S).hangs_after(100 * AFTER_S)


def test_it_hangs_where_it_was_sent_something_and_says_nothing() -> None:
    watch, passed = HangWatch(AFTER_S), list[str]()
    send, emit = watch.sending(passed.append), watch.hearing(passed.append)
    send("start")
    assert not watch.hangs_after(AFTER_S)
    send("again")
    assert watch.hangs_after(1)
    emit("late")
    assert not watch.hangs_after(100 * AFTER_S)
    send("more")
    assert not watch.hangs_after(AFTER_S), "it counts from there"
    assert passed == ["start", "again", "late", "more"]


def test_its_process_ends_and_says_where_it_hung() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "its process ends: it hangs in wait (" in done.stderr
    assert "compute (" in done.stderr
