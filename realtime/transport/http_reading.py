"""The reading of an HTTP connection: it goes on where uvicorn wants more, and where what came is paid for.

It knows a transport, and not what is read.
"""

from __future__ import annotations

from uvicorn.protocols.http.flow_control import FlowControl


class HttpReading(FlowControl):
    """In the place of uvicorn's own."""

    _held = False

    def hold(self) -> None:
        self._held = True
        self._transport.pause_reading()

    def release(self) -> None:
        """Or another reads it from now on, or nobody."""
        if self._held:
            self._held = False
            self._resume()

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._resume()

    def _resume(self) -> None:
        if not (self.read_paused or self._held or self._transport.is_closing()):
            self._transport.resume_reading()
