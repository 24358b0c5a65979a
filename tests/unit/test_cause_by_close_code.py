"""Why a connection ended, in one word."""

from __future__ import annotations

import pytest

from realtime.hub.observers import DisconnectCause
from realtime.transport.asgi_websocket_extension import TOOK_NOTHING, UNANSWERED
from realtime.websocket.cause_by_close_code import cause_of


@pytest.mark.parametrize(
    ("code", "reason", "cause"),
    [
        (1000, "", "closed"),
        (1001, "the tab was closed", "closed"),
        (1005, None, "closed"),
        (1006, "", "lost"),
        (1013, "too much of what you send is under way", "refused"),
        (None, None, "lost"),
        (1006, TOOK_NOTHING, "slow"),
        (1000, TOOK_NOTHING, "closed"),
        (1011, UNANSWERED, "lost"),
        (1011, "", "failed"),
        (1008, "too many pings", "refused"),
        (1002, "", "refused"),
        (1007, "", "refused"),
        (1009, "", "refused"),
        (3000, "a code of the client's own", "closed"),
        (4999, "", "closed"),
    ],
)
def test_a_code_and_a_reason_are_one_cause(
    code: int | None, reason: str | None, cause: DisconnectCause
) -> None:
    assert cause_of(code, reason) == cause


@pytest.mark.parametrize("code", [1002, 1007, 1008, 1009, 1011, 1013, 4401, 4409])
def test_a_code_of_the_peers_own_is_no_word_of_ours(code: int) -> None:
    assert cause_of(code, "", by_peer=True) == "closed"
    assert cause_of(code, UNANSWERED, by_peer=True) == "lost"
