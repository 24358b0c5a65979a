"""The files by which gateways and engines know each other over TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class CertificateError(OSError):
    """One of them cannot be used; the message is a sentence."""


class Certificates(NamedTuple):
    """Paths, or nothing: of the authorities by which the other side is known, of a certificate to show, and
    of its private key."""

    authorities: str = ""
    own: str = ""
    key: str = ""

    def of_a_gateway(self) -> ssl.SSLContext:
        """Engines are known by these authorities, or else by the machine's."""
        with _naming(self.authorities):
            context = ssl.create_default_context(cafile=self.authorities or None)
        if self.own:
            self._show(context)
        return context

    def of_an_engine(self) -> ssl.SSLContext:
        """Where there are authorities, gateways must show a certificate of theirs."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._show(context)
        if self.authorities:
            with _naming(self.authorities):
                context.load_verify_locations(self.authorities)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Of authorities, key and certificate, in gRPC's order."""
        return _content(self.authorities), _content(self.key), _content(self.own)

    def _show(self, context: ssl.SSLContext) -> None:
        with _naming(self.own):
            Path(self.key).open("rb").close()  # whose error says which file it is
            context.load_cert_chain(self.own, self.key, self._ask_nobody)

    def _ask_nobody(self) -> str:
        """OpenSSL would ask at the terminal by itself, and a server that connects again would wait."""
        raise OSError(f"its private key {self.key} is encrypted: take one that is not")


def _content(file: str) -> bytes | None:
    if not file:
        return None
    with _naming(file):
        return Path(file).read_bytes()


@contextmanager
def _naming(file: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # an error of TLS is one
        raise CertificateError(f"the certificate {file} cannot be used: {error}") from None
