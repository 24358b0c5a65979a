"""The models of this server: which there are, and which of them a name means: its own, an alias, or none,
which is the first.

Pure. It knows what is served under a name once something is, and neither who computes it nor for whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

from msgspec import Struct

from realtime.refusal import Refusal, shortened
from realtime.text.served_model import ServedModel

LoadState = Literal["cold", "loading", "ready", "unloading"]


class Keeper(Protocol):
    """Who loads a model when somebody wants it, and unloads it when nobody does."""

    @property
    def state(self) -> LoadState: ...

    @property
    def pinned(self) -> bool: ...

    @property
    def awaited(self) -> bool:
        """Whether streams wait for it to be loaded, and not for an engine that has died."""

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be loaded, or is."""

    @property
    def eta_ms(self) -> int | None: ...
    def want(self) -> None: ...
    def unload(self) -> None: ...
    def pin(self, *, pinned: bool) -> None: ...


class KnownModel(Struct, eq=False):
    """A model of this server."""

    name: str
    aliases: tuple[str, ...] = ()
    parent: str | None = None  # of an adapter, the model that it changes
    served: ServedModel | None = None  # until it is known what it is
    keeper: Keeper | None = None  # None where its engines come and go by themselves

    @property
    def awaited(self) -> bool:
        """Whether it is not loaded, and will be when somebody wants it."""
        return self.keeper is not None and self.keeper.awaited


class Models:
    """The first is the default. Those that are not said beforehand are learnt of the engines that come."""

    def __init__(self, known: Iterable[KnownModel] = ()) -> None:
        self._known = {model.name: model for model in known}
        self._aliases = {alias: model for model in self._known.values() for alias in model.aliases}

    def __iter__(self) -> Iterator[KnownModel]:
        return iter(self._known.values())

    @property
    def default(self) -> ServedModel | None:
        return next((model.served for model in self), None)

    def find(self, name: str | None) -> KnownModel:
        """Raises Refusal where there is no such model."""
        if not self._known:
            raise Refusal("overloaded", "The engine is being started.", retry_after_ms=1000)
        if name is None:
            return next(iter(self))
        found = self._known.get(name) or self._aliases.get(name)
        if found is None:
            names = ", ".join(f'"{known}"' for known in self._known)
            raise Refusal("unknown_model", f'There is no model "{shortened(name)}"; this server has {names}.')
        return found

    def named(self, name: str) -> KnownModel | None:
        """Under this very name."""
        return self._known.get(name)

    def serve(self, served: ServedModel) -> None:
        """An engine has this model."""
        self._known.setdefault(served.name, KnownModel(served.name)).served = served
