"""The shares of tenants over gateways: what each takes here is told to the other gateways, and what it takes
there is heard, by way of an engine that all of them have, so that its limits hold over all.

How long it takes until others hear is by how much a tenant may be over its limits. It knows engines, and
quotas; which gateways there are it hears from engines.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec import MsgspecError, Struct, msgpack

from engine import api
from realtime.hub.keepers import answering, chosen
from realtime.hub.registry import Timer
from realtime.hub.serving import Serving
from realtime.hub.serving_engine import ServingEngine
from realtime.tenants.elsewhere import Elsewhere
from realtime.tenants.quota import Quotas, Taken

TELL_S = 0.1  # from a change of what is taken at present until it is told
SPENT_S = 1.0  # and of what is in all: it changes with every token
NAME = b"shares"  # by which all gateways choose the same engine


class Told(Struct, array_like=True):
    taken: dict[str, Taken]  # by tenant
    whole: bool  # or else what has changed


_decode = msgpack.Decoder(Told).decode


class Shares:
    def __init__(
        self, serving: Serving, quotas: Quotas, call_later: Callable[[float, Callable[[], None]], Timer]
    ) -> None:
        self._serving = serving
        self._quotas = quotas
        self._call_later = call_later
        self._elsewhere = Elsewhere(quotas)
        self._others = set[tuple[int, int]]()  # gateways, by an engine and their number there
        self._relay: ServingEngine | None = None  # that passes on what we tell
        self._whole = True  # whether all is to be told next
        self._timer: Timer | None = None
        self._spent_timer: Timer | None = None
        self._withdrawn = False
        quotas.on_change, quotas.on_spend = self._tell_soon, self._tell_spent_soon

    def engine_ready(self, engine: ServingEngine) -> None:
        if engine.keeps and self._quotas.are_bounded and not self._withdrawn:
            engine.say(api.Announce(b""))  # who else is there?
            self._serving.flush()

    def receive(self, engine: ServingEngine, announced: api.Announced) -> None:
        gateway = engine.number, announced.gateway
        if announced.what is None:
            self._others.discard(gateway)
            self._elsewhere.forget(gateway)
        elif announced.what:
            self._hear(gateway, announced.what)
        else:  # it has come, and knows nothing of us
            self._others.add(gateway)
            self._whole = True
            self._tell_soon()

    def engine_lost(self, engine: ServingEngine) -> None:
        """What was told by way of it will be told by way of another."""
        for gateway in [gateway for gateway in self._others if gateway[0] == engine.number]:
            self._others.discard(gateway)
            self._elsewhere.forget(gateway)
        if engine is self._relay:
            self._relay = None
            self._tell_soon()

    def _hear(self, gateway: tuple[int, int], what: bytes) -> None:
        """What a program of others, or a server of another version, tells in other words is passed over."""
        with suppress(MsgspecError, ValueError, RecursionError):
            told = _decode(what)
            self._elsewhere.hear(gateway, told.taken, whole=told.whole)

    def withdraw(self) -> None:
        """Whoever is here goes elsewhere, and must not be in the way of itself there. Saying so again tells
        nobody anything."""
        self._withdrawn = True
        if self._relay is not None:
            self._say(self._relay, Told({}, whole=True))
            self._relay = None
            self._serving.flush()

    def _tell_soon(self) -> None:
        if self._timer is None and self._others and not self._withdrawn:
            self._timer = self._call_later(TELL_S, self._tell_changed)

    def _tell_spent_soon(self) -> None:
        if self._spent_timer is None and self._others and not self._withdrawn:
            self._spent_timer = self._call_later(SPENT_S, self._tell_spent)

    def _tell_changed(self) -> None:
        self._timer = None
        self._tell(self._quotas.changed)

    def _tell_spent(self) -> None:
        self._spent_timer = None
        self._tell(self._quotas.spent)

    def _tell(self, taken: Callable[[], dict[str, Taken]]) -> None:
        if self._withdrawn:
            return
        relay = chosen(NAME, answering(self._serving))
        if relay is not self._relay:
            if self._relay is not None:
                self._say(self._relay, Told({}, whole=True))  # it is told there
            self._relay, self._whole = relay, True
        if relay is not None:
            told = self._quotas.taken() if self._whole else taken()
            self._say(relay, Told(told, self._whole))
            self._whole = False
        self._serving.flush()

    def _say(self, relay: ServingEngine, told: Told) -> None:
        relay.say(api.Announce(msgpack.encode(told)))
