"""The summary of an answer that has ended: one line of its tokens, times and reason. Pure."""

from __future__ import annotations

from midstream.cli.sanitize import sanitize
from midstream.protocol import Final


def summary(final: Final) -> str:
    """Tokens, time to the first of them, total time, tokens a second, and why it ended: in one line."""
    timing = final.timing
    reason = sanitize(final.finish_reason)
    if final.stop_reason is not None:
        reason += (
            f" ({sanitize(final.stop_reason)!r})"
            if final.stop_reason not in _KNOWN_REASONS
            else f" ({final.stop_reason})"
        )
    parts = [f"{final.usage.completion_tokens} tokens"]
    if timing.ttft_ms is not None:
        parts.append(f"first after {timing.ttft_ms / 1000:.2f} s")
    parts.append(f"total {timing.total_ms / 1000:.2f} s")
    if timing.tokens_per_s is not None:
        parts.append(f"{timing.tokens_per_s:.1f} tok/s")
    return " · ".join([*parts, reason])


_KNOWN_REASONS = ("eos", "timeout")
