"""The address of an engine that listens, as options spell it: HOST:PORT or unix:PATH, and before HOST:PORT
`grpc:` for gRPC, `tls:` where it is encrypted, or both."""

from __future__ import annotations

from typing import NamedTuple

UNIX, GRPC, TLS = "unix:", "grpc:", "tls:"


class Address(NamedTuple):
    text: str

    @property
    def path(self) -> str | None:
        return self.text.removeprefix(UNIX) if self.text.startswith(UNIX) else None

    @property
    def is_grpc(self) -> bool:
        return self.text.startswith(GRPC)

    @property
    def is_tls(self) -> bool:
        return self.text.removeprefix(GRPC).startswith(TLS)

    @property
    def place(self) -> str:
        """HOST:PORT."""
        return self.text.removeprefix(GRPC).removeprefix(TLS)

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.place.rpartition(":")
        return host.strip("[]"), int(port)
