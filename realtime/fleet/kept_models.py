"""Models whose engines are kept elsewhere, and come when somebody needs them: what the hub asks about each,
by what the fleet's keeper says, and whether an engine serves it here.

It starts no engine: what streams need is told to those who do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from realtime.fleet.served_models import ServedModels
from realtime.hub.hub import Hub
from realtime.hub.models import LoadState
from realtime.hub.placement import PlacedModel, Placement
from realtime.refusal import Refusal

log = logging.getLogger(__name__)


class KeptModel:
    pinned = False

    def __init__(self, name: str, hub: Hub, clock: Callable[[], float]) -> None:
        self._name = name
        self._hub = hub
        self._clock = clock
        self._engines = 0  # that it is to have
        self._fails = False  # whether none of them can start
        self._asked_for = False
        self._began_s: float | None = None  # to be loaded
        self._took_s: float | None = None  # the last time

    @property
    def _serves(self) -> bool:
        return self._hub.serving.of_model(self._name).serves

    @property
    def state(self) -> LoadState:
        if self._serves:
            return "ready"
        return "loading" if self.is_wanted else "cold"

    @property
    def awaited(self) -> bool:
        """Also where an engine has died: nobody knows here whether it is to come back."""
        return not self._serves

    @property
    def is_asked_for(self) -> bool:
        """Whether it was wanted, and has not come yet."""
        return self._asked_for

    @property
    def is_wanted(self) -> bool:
        return self._serves or self._asked_for or bool(self._engines)

    @property
    def eta_ms(self) -> int | None:
        if self._took_s is None:
            return None
        since_s = 0.0 if self._began_s is None else self._clock() - self._began_s
        return int(1000 * max(0.0, self._took_s - since_s))

    def want(self) -> None:
        self._asked_for = not self._serves
        self.look()

    def unload(self) -> None:
        raise self._refusal()

    def pin(self, *, pinned: bool) -> None:
        raise self._refusal()

    def receive(self, told: PlacedModel, *, fails: bool) -> None:
        """As the fleet's keeper says. `fails`: whether none of its engines can start."""
        self._engines, self._fails = told.engines, fails
        self.look()

    def look(self) -> None:
        """How it is now."""
        if self._fails and not self._serves:
            self._began_s, self._asked_for = None, False
            self._hub.serving.fail_waiting(self._name)
        elif self._serves:
            if self._began_s is not None:
                self._took_s = self._clock() - self._began_s
            self._began_s, self._asked_for = None, False
        elif self.is_wanted and self._began_s is None:
            self._began_s = self._clock()

    def _refusal(self) -> Refusal:
        return Refusal(
            "unsupported",
            f'The engines of "{self._name}" serve other servers, too:'
            " `midstream fleet scale` has more or fewer of them.",
        )


class KeptModels:
    def __init__(self, hub: Hub, models: ServedModels, clock: Callable[[], float] = time.monotonic) -> None:
        self._hub = hub
        self._models = models
        self._clock = clock
        self._keepers: dict[str, KeptModel] = {}
        self._failed: dict[str, str] = {}  # engines, and why

    async def open(self, names: Sequence[str]) -> None:
        """These have no engine while nobody needs them: what they are is read from their files, so that
        streams may wait for them. Raises EngineFailed."""
        for served in await self._models.outlined(names):
            self._hub.models.serve(served)
            self._keep(served.name)

    def asked_for(self) -> set[str]:
        """Whether or not a stream needs them."""
        for keeper in self._keepers.values():
            keeper.look()
        return {name for name, keeper in self._keepers.items() if keeper.is_asked_for}

    def receive(self, placement: Placement) -> None:
        for model in placement.models:
            if model.may_sleep and self._hub.models.named(model.name) is not None:
                states = {one.state for one in placement.engines if one.model == model.name}
                self._keep(model.name).receive(model, fails=states == {"failed"})
        failed = {one.name: one.why for one in placement.engines if one.state == "failed"}
        for engine, why in failed.items():
            if self._failed.get(engine) != why:
                log.error("%s does not start: %s; its machine tries again", engine, why)
        self._failed = failed

    def _keep(self, name: str) -> KeptModel:
        if name not in self._keepers:
            known = self._hub.models.named(name)
            assert known is not None
            known.keeper = self._keepers[name] = KeptModel(name, self._hub, self._clock)
        return self._keepers[name]
