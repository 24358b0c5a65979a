"""What whoever connects may take before it is known, and how long one that says nothing is waited for."""

from __future__ import annotations

from engine.history import MOST_BYTES

JOIN_S = 5.0  # within which whoever connects says who it is
GOODBYE_S = 1.0  # for whoever is hung up on to take that in
LARGEST_JOIN = 4096
MOST_STRANGERS = 64  # connections at a time that have not said it
# A gateway whose machine is gone says nothing any more: after so many seconds, and so many questions. Nobody
# is asked while something is on its way to them, which may be for so long then.
IDLE_S, BETWEEN_S, QUESTIONS = 5, 2, 3
UNTAKEN_S = IDLE_S + BETWEEN_S * QUESTIONS
MOST_UNSENT = 64 << 20  # bytes, for a gateway that does not read: its streams' credit makes far fewer
# Streams that outlive their gateway: what is remembered of each, and of all, also of those that have ended.
JOURNAL_BYTES, JOURNALS_BYTES = MOST_BYTES, 128 << 20
ENDED_S = 300.0  # for which one that has ended can be adopted
MOST_GRACE_S = 3600.0
