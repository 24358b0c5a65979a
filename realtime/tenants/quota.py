"""The quotas of tenants: what each takes, held against what it may, whenever it asks for more.

Counted are the tokens that are read, put in, decoded and computed again for a tenant, and those that were
made of its texts in vain. What runs goes on: whoever has taken more than a minute's tokens pays by waiting
until it may ask for more, by a start, an inject, or a resume of what was released. Models that are loaded
because one of its streams needs them are counted likewise. It knows tenants by name and their allowances, and
no stream, no socket and no other tenant's affairs: a refusal speaks of the tenant's own.

What a tenant takes at other gateways counts as what it takes here, but for the share of this server that is
left to whoever has no number of its own. Where there are no keys everything is the same, with an allowance
that has no bounds.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from midstream.protocol import Start
from realtime.refusal import Refusal
from realtime.tenants.allowance import EVERYTHING, Allowance
from realtime.token_bucket import TokenBucket

A_WHILE_MS = 1000


class Rate:
    """So much in `period_s`, by a limit that may change: the key file does."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._bucket: TokenBucket | None = None  # while there is a limit

    def count(self, amount: int, limit: int | None, now: float) -> None:
        bucket = self._limited(limit, now)
        if bucket is not None:
            bucket.spend(amount, now)

    def wait_s(self, limit: int | None, now: float) -> float:
        """Until one more is within the limit."""
        bucket = self._limited(limit, now)
        return 0.0 if bucket is None else bucket.wait_s(1, now)

    def _limited(self, limit: int | None, now: float) -> TokenBucket | None:
        if limit is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(rate=limit / self._period_s, burst=limit, now=now)
        else:
            self._bucket.rate, self._bucket.burst = limit / self._period_s, limit
        return self._bucket


class Taken(Struct, array_like=True):
    """What a tenant takes at a gateway: at present, and in all since that began, but for times without limits
    of its own: what was taken then would count when it has some, as if it had just been taken."""

    streams: int = 0
    connections: int = 0
    waiting: int = 0  # prompt tokens that wait for the engine
    tokens: int = 0  # in all
    loads: int = 0  # in all


class TenantAccount:
    def __init__(self) -> None:
        self.here = Taken()
        self.elsewhere = Taken()  # at all other gateways together
        self.tokens, self.loads = Rate(60), Rate(3600)


class StreamQuota:
    """What one stream takes of its tenant's allowance, from its start to its end."""

    def __init__(self, quotas: Quotas, tenant: str, prompt_tokens: int) -> None:
        self._quotas = quotas
        self._tenant = tenant
        self._prompt = prompt_tokens  # that the engine has not begun with
        self._waiting = prompt_tokens  # of them
        self._ended = False

    def prefill_rests(self) -> None:
        """The prompt waits for the client, and not for the engine."""
        self._wait_with(0)

    def prefill_waits(self) -> None:
        """It does for the engine, unless that has begun with it. What runs goes on, however much waits."""
        self._wait_with(self._prompt)

    def prefill_begun(self) -> None:
        """The engine has begun with the prompt. Saying so again changes nothing."""
        self._prompt = 0
        self._wait_with(0)

    def _wait_with(self, tokens: int) -> None:
        if tokens != self._waiting:
            self._quotas.take(self._tenant, waiting=tokens - self._waiting)
            self._waiting = tokens

    def count(self, tokens: int) -> None:
        """Tokens were decoded, put in, or computed again."""
        self._quotas.count(self._tenant, tokens)

    def check_rate(self) -> None:
        """Refuse what would have more tokens computed."""
        self._quotas.check_rate(self._tenant)

    def end(self) -> None:
        """Saying so again changes nothing."""
        if not self._ended:
            self._ended = True
            self.prefill_begun()
            self._quotas.take(self._tenant, streams=-1)


class Quotas:
    def __init__(
        self,
        allowance: Callable[[str], Allowance] | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        share: Allowance | None = None,
    ) -> None:
        """`share`: how many streams and connections this server leaves to each tenant whose allowance has
        no number of them."""
        self.on_change: Callable[[], None] = _nothing  # somebody takes more or less here at present
        self.on_spend: Callable[[], None] = _nothing  # or has taken more in all
        self.are_bounded = allowance is not None  # or there is nothing that anybody could take too much of
        self._allowance = allowance or _everything
        self._share = share or Allowance()
        self._clock = clock
        self._accounts: dict[str, TenantAccount] = defaultdict(TenantAccount)
        # Tenants who have limits of their own, since it was asked last.
        self._changed: set[str] = set()
        self._spent: set[str] = set()
        self._untold: set[str] = set()  # those who have none, or had when they took more or less

    def check(self, tenant: str, start: Start, awaited: int = 0) -> None:
        """Refuse what can be refused before the prompt is tokenized, which costs more than to say no.
        `awaited`: streams of its that are about to begin."""
        allowance, account = self._allowance(tenant), self._accounts[tenant]
        _check_priority(start, allowance)
        here, elsewhere = account.here.streams + awaited, account.elsewhere.streams
        most = _reached(allowance.max_streams, self._share.max_streams, here, elsewhere)
        if most is not None:
            raise Refusal(
                "too_many_streams",
                f"Your limit of {most} unfinished streams is reached.",
                retry_after_ms=A_WHILE_MS,
            )
        self.check_rate(tenant)

    def check_connections(self, tenant: str) -> None:
        """Refuse one more."""
        allowance, account = self._allowance(tenant), self._accounts[tenant]
        here, elsewhere = account.here.connections, account.elsewhere.connections
        most = _reached(allowance.max_connections, self._share.max_connections, here, elsewhere)
        if most is not None:
            raise Refusal(
                "rate_limited",
                f"The limit of {most} connections of your key's tenant is reached.",
                retry_after_ms=A_WHILE_MS,
            )

    def check_rate(self, tenant: str) -> None:
        """Refuse where a minute's tokens are taken."""
        limit = self._allowance(tenant).tokens_per_minute
        _refuse_for(self._accounts[tenant].tokens.wait_s(limit, self._clock()), f"{limit} tokens a minute")

    def check_loads(self, tenant: str) -> None:
        """Refuse where so many models were loaded for it as may be in an hour."""
        limit = self._allowance(tenant).loads_per_hour
        _refuse_for(
            self._accounts[tenant].loads.wait_s(limit, self._clock()), f"{limit} loads of models an hour"
        )

    def count_load(self, tenant: str) -> None:
        self._accounts[tenant].loads.count(1, self._allowance(tenant).loads_per_hour, self._clock())
        self.take(tenant, loads=1)

    def admit(self, tenant: str, start: Start, prompt_tokens: int) -> StreamQuota:
        """A quota for the stream, or the Refusal that says why there is none. The last thing to be asked
        before a stream is there: its quota must be told of the stream's end."""
        self.check(tenant, start)
        allowance, account = self._allowance(tenant), self._accounts[tenant]
        most, waiting = allowance.prefill_tokens, account.here.waiting + account.elsewhere.waiting
        # A prompt that is longer than all that may wait can only wait alone; else it never could.
        if most is not None and waiting and waiting + prompt_tokens > most:
            raise Refusal(
                "rate_limited",
                f"{waiting} tokens of your prompts wait for the engine, and {prompt_tokens} more "
                f"would be beyond the {most} that may.",
                retry_after_ms=A_WHILE_MS,
            )
        self.take(tenant, streams=1, waiting=prompt_tokens)
        self.count(tenant, prompt_tokens)
        return StreamQuota(self, tenant, prompt_tokens)

    def take_over(self, tenant: str, prompt_tokens: int) -> StreamQuota:
        """For a stream that runs already. Its prompt was counted where it began; of that the engine has yet
        to begin with so much."""
        self.take(tenant, streams=1, waiting=prompt_tokens)
        return StreamQuota(self, tenant, prompt_tokens)

    def count(self, tenant: str, tokens: int) -> None:
        limit = self._allowance(tenant).tokens_per_minute
        self._accounts[tenant].tokens.count(tokens, limit, self._clock())
        self.take(tenant, tokens=tokens)

    def take(
        self,
        tenant: str,
        *,
        streams: int = 0,
        connections: int = 0,
        waiting: int = 0,
        tokens: int = 0,
        loads: int = 0,
    ) -> None:
        """It takes so much more here than before, or less."""
        here = self._accounts[tenant].here
        here.streams += streams
        here.connections += connections
        here.waiting += waiting
        if not self._allowance(tenant).has_limits:
            self._untold.add(tenant)
            return
        here.tokens += tokens
        here.loads += loads
        if tokens or loads:
            self._spent.add(tenant)
            self.on_spend()
        if streams or connections or waiting:
            self._changed.add(tenant)
            self.on_change()

    # -- over gateways ---------------------------------------------------------------------------

    def taken(self) -> dict[str, Taken]:
        """Here, by each tenant who has limits of its own."""
        return self._here(tenant for tenant in self._accounts if self._allowance(tenant).has_limits)

    def allowances_changed(self) -> None:
        """Of those who have limits now, and had none before, others do not know what they take."""
        limited = {tenant for tenant in self._accounts if self._allowance(tenant).has_limits}
        newly = limited & self._untold
        self._untold = self._accounts.keys() - limited
        if newly:
            self._changed |= newly
            self.on_change()

    def changed(self) -> dict[str, Taken]:
        """By those who take more or less at present than when this was asked last."""
        changed, self._changed = self._changed, set()
        return self._here(changed)

    def spent(self) -> dict[str, Taken]:
        """By those who have taken more in all."""
        spent, self._spent = self._spent, set()
        return self._here(spent)

    def _here(self, tenants: Iterable[str]) -> dict[str, Taken]:
        return {tenant: replace(self._accounts[tenant].here) for tenant in tenants}

    def take_elsewhere(self, tenant: str, before: Taken, now: Taken) -> None:
        """What it takes at another gateway is this now, and was that before."""
        account = self._accounts[tenant]
        elsewhere = account.elsewhere
        elsewhere.streams += now.streams - before.streams
        elsewhere.connections += now.connections - before.connections
        elsewhere.waiting += now.waiting - before.waiting
        allowance, at = self._allowance(tenant), self._clock()
        account.tokens.count(max(0, now.tokens - before.tokens), allowance.tokens_per_minute, at)
        account.loads.count(max(0, now.loads - before.loads), allowance.loads_per_hour, at)


def _nothing() -> None:
    pass


def _everything(tenant: str) -> Allowance:
    return EVERYTHING


def _reached(own: int | None, share: int | None, here: int, elsewhere: int) -> int | None:
    """The limit that is reached, if one is: a tenant's own, of what it takes anywhere, or where it has none
    its share of this server."""
    most, there = (share, here) if own is None else (own, here + elsewhere)
    return most if most is not None and there >= most else None


def _refuse_for(wait_s: float, limit: str) -> None:
    if wait_s:
        raise Refusal(
            "rate_limited", f"Your limit of {limit} is reached.", retry_after_ms=math.ceil(wait_s * 1000)
        )


def _check_priority(start: Start, allowance: Allowance) -> None:
    lowest, highest = allowance.priority
    if not lowest <= start.priority <= highest:
        raise Refusal(
            "forbidden", f"`priority` is {start.priority}; your key may ask for {lowest} to {highest}."
        )
