"""The engine thread: an engine in this very process, for embedding, or where no second process is wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine import api
from engine.build.build import build
from engine.engine import Engine
from engine.loading_heartbeat import heartbeat
from engine.model.preflight import ModelError


class EngineThread:
    """Loads an engine and steps it. `on_message` is called in that thread, and so is `on_closed`, at its
    end."""

    def __init__(
        self,
        options: api.EngineOptions,
        on_message: Callable[[api.AnyMessage], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._options = options
        self._on_message = on_message
        self._on_closed = on_closed
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, commands: list[api.AnyCommand]) -> None:
        assert self._engine is not None, "nothing is sent before Hello"
        self._engine.send(commands)

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop()

    def join(self, most_s: float) -> None:
        """Wait for its end; no longer than that, for a thread cannot be ended by force."""
        self._thread.join(most_s)

    def _run(self) -> None:
        try:
            with heartbeat(self._on_message):
                self._engine, hello = build(self._options)
            self._on_message(hello)
            self._engine.run(self._on_message)
        except ModelError as error:
            self._on_message(api.Failed(str(error)))
        finally:
            self._on_closed()
