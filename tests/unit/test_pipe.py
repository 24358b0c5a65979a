"""The pipe between processes: whole messages, until the other end is closed, in whatever manner."""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Callable

import pytest

from engine import api, pipe_reader
from engine.pipe import Pipe
from engine.pipe_reader import PipeReader


def closed(theirs: socket.socket) -> None:
    """In good order."""


def closed_within_a_length(theirs: socket.socket) -> None:
    theirs.sendall(b"\0\0")


def closed_within_a_message(theirs: socket.socket) -> None:
    theirs.sendall(api.framed(b"message")[:-1])


@pytest.mark.parametrize("way", [closed, closed_within_a_length, closed_within_a_message])
@pytest.mark.parametrize("unread", [False, True], ids=["all read", "with something unread"])
def test_what_came_whole_is_received_and_then_nothing(
    way: Callable[[socket.socket], None], unread: bool
) -> None:
    ours, theirs = socket.socketpair()
    pipe = Pipe(ours)
    if unread:
        pipe.send(api.Starting())  # the kernel tells that as a reset
    theirs.sendall(api.framed(b"first"))
    assert pipe.receive() == b"first"
    way(theirs)
    theirs.close()
    assert pipe.receive() is None
    pipe.close()


def test_an_engine_that_ends_by_what_it_is_told_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended = queue.SimpleQueue[object]()
    monkeypatch.setattr(pipe_reader, "LAST_STEP_S", 0.0)
    monkeypatch.setattr(os, "_exit", ended.put)
    ours, theirs = socket.socketpair()
    with theirs:
        pipe = Pipe(ours)
        PipeReader(pipe).attach(lambda commands: None, lambda: ended.put("in good order"))
        theirs.sendall(api.encoded([api.Starting()]))  # which is no command
        assert [ended.get(timeout=30), ended.get(timeout=30)] == ["in good order", 1]
    pipe.close()
    assert "what the gateway said could not be taken in, and the engine ends" in caplog.text
    assert "Invalid value 'Starting'" in caplog.text
