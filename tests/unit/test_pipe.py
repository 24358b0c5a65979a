"""The pipe between processes: whole messages, until the other end is closed, in whatever manner."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from engine import api
from engine.pipe import Pipe


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
