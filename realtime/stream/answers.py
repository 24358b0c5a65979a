"""Who hears what came of a frame: whoever sent it and does not listen, and the stream's listener."""

from __future__ import annotations

from msgspec.structs import replace

from midstream import protocol
from realtime.stream.outbox import Outbox
from realtime.stream.pending_commands import PendingCommand, Reply


def answer(outbox: Outbox, asked: PendingCommand | None, event: Reply) -> None:
    elsewhere = asked.send_reply if asked is not None and asked.wants_reply else None
    if elsewhere is not None:
        elsewhere(replace(event))
    if elsewhere is None or not isinstance(event, protocol.Error):  # mistakes concern whoever made them
        outbox.put(event)
