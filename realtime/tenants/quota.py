"""What each tenant takes, held against what it may: the gate that every start passes, and nothing else.

The gate only ever refuses a start. What runs goes on, and is counted: whoever has taken more than a minute's
tokens pays by waiting until a next start. It knows tenants by name and their allowances, and no stream, no
socket and no other tenant's affairs: a refusal speaks of the tenant's own.

Where there are no keys everything is the same, with an allowance that has no bounds.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable

from midstream.protocol import Start
from realtime.refusal import Refusal
from realtime.tenants.allowance import EVERYTHING, Allowance

A_WHILE_MS = 1000


class Bucket:
    """Tokens taken, leaking out at a steady rate.

    Our own, and not the library `limits`: what has been decoded must be counted even beyond the limit, which
    that refuses or keeps an entry a token for, and it reads a clock of its own.
    """

    def __init__(self, now: float) -> None:
        self._taken = 0.0
        self._at = now

    def take(self, tokens: int, per_minute: int | None, now: float) -> None:
        self._taken = self._level(per_minute, now) + tokens
        self._at = now

    def wait_s(self, per_minute: int | None, now: float) -> float:
        """Until there is room for one more token of a minute's; 0 if there is now."""
        if per_minute is None:
            return 0.0
        return max(0.0, self._level(per_minute, now) - per_minute + 1) * 60 / per_minute

    def _level(self, per_minute: int | None, now: float) -> float:
        if per_minute is None:
            return 0.0
        return max(0.0, self._taken - (now - self._at) * per_minute / 60)


class Account:
    """What one tenant takes at present."""

    def __init__(self, now: float) -> None:
        self.streams = 0
        self.waiting = 0  # prompt tokens of streams that the engine has not begun with
        self.bucket = Bucket(now)


class Share:
    """What one stream takes of its tenant's allowance, from its start to its end."""

    def __init__(self, gate: Gate, tenant: str, prompt_tokens: int) -> None:
        self._gate = gate
        self._tenant = tenant
        self._waiting = prompt_tokens
        self._ended = False

    def begun(self) -> None:
        """The engine has begun with the prompt. Saying so again changes nothing."""
        self._gate.account(self._tenant).waiting -= self._waiting
        self._waiting = 0

    def took(self, tokens: int) -> None:
        """Tokens were decoded, or put in."""
        self._gate.count(self._tenant, tokens)

    def ended(self) -> None:
        """Saying so again changes nothing."""
        if not self._ended:
            self._ended = True
            self.begun()
            self._gate.account(self._tenant).streams -= 1


class Gate:
    def __init__(
        self,
        allowance: Callable[[str], Allowance] = lambda tenant: EVERYTHING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowance = allowance
        self._clock = clock
        self._accounts: dict[str, Account] = defaultdict(lambda: Account(clock()))

    def check(self, tenant: str, start: Start) -> None:
        """Refuse what can be refused before the prompt is tokenized, which costs more than to say no."""
        allowance, account = self._allowance(tenant), self._accounts[tenant]
        _check_priority(start, allowance)
        if allowance.max_streams is not None and account.streams >= allowance.max_streams:
            raise Refusal(
                "too_many_streams",
                f"You have your most of {allowance.max_streams} unfinished streams.",
                retry_after_ms=A_WHILE_MS,
            )
        wait_s = account.bucket.wait_s(allowance.tokens_per_minute, self._clock())
        if wait_s:
            raise Refusal(
                "rate_limited",
                f"You have taken your {allowance.tokens_per_minute} tokens of this minute.",
                retry_after_ms=math.ceil(wait_s * 1000),
            )

    def admit(self, tenant: str, start: Start, prompt_tokens: int) -> Share:
        """A share for the stream, or the Refusal that says why there is none. The last thing to be asked
        before a stream is there: its share must be told of the stream's end."""
        self.check(tenant, start)
        allowance, account = self._allowance(tenant), self._accounts[tenant]
        most = allowance.prefill_tokens
        # A prompt that is longer than all that may wait can only wait alone; else it never could.
        if most is not None and account.waiting and account.waiting + prompt_tokens > most:
            raise Refusal(
                "rate_limited",
                f"{account.waiting} tokens of your prompts wait for the engine, and {prompt_tokens} more "
                f"would be beyond the {most} that may.",
                retry_after_ms=A_WHILE_MS,
            )
        account.streams += 1
        account.waiting += prompt_tokens
        self.count(tenant, prompt_tokens)
        return Share(self, tenant, prompt_tokens)

    def account(self, tenant: str) -> Account:
        return self._accounts[tenant]

    def count(self, tenant: str, tokens: int) -> None:
        per_minute = self._allowance(tenant).tokens_per_minute
        self._accounts[tenant].bucket.take(tokens, per_minute, self._clock())


def _check_priority(start: Start, allowance: Allowance) -> None:
    lowest, highest = allowance.priority
    if not lowest <= start.priority <= highest:
        raise Refusal(
            "forbidden", f"`priority` is {start.priority}; your key may ask for {lowest} to {highest}."
        )
