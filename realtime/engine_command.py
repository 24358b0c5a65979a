"""The command `midstream engine`: an engine that listens, for gateways on this machine or others."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from realtime.bind import StartupError, bind
from realtime.config import ListenOptions, parse_listening
from realtime.fleet.fleet import PlaceError
from realtime.fleet.places import engine_options, token_in
from realtime.fleet.socket_link import Address
from realtime.observability import logs


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_listening(sys.argv[1:] if argv is None else argv, os.environ)
    logs.set_up(options.log_level, options.log_format)
    try:
        token = token_in(options.token_file)
        if options.token_file and not token:
            raise PlaceError(f"the file {options.token_file} holds no token")
        tls = _tls(options)
        with _bound(Address(options.listen)) as listening:
            # They bring torch with them: only once it is known that there is something to do.
            from engine.listening import listen
            from engine.model.preflight import ModelError

            try:
                listen(engine_options(options), listening, token, tls)
            except ModelError as problem:
                raise StartupError(f"the engine does not start: {problem}") from None
    except (StartupError, PlaceError) as problem:
        print(f"midstream: {problem}", file=sys.stderr)
        return 1
    return 0


def _tls(options: ListenOptions) -> ssl.SSLContext | None:
    if not options.tls_cert_file:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.tls_cert_file, options.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"the certificate {options.tls_cert_file} cannot be used: {error}") from None
    return context


def _bound(address: Address) -> socket.socket:
    """Nobody can connect before it listens."""
    if address.path is None:
        return bind(*address.host_and_port, accepts=False)
    path = Path(address.path)
    listening = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            path.unlink()  # of one that is gone: who is there keeps what it has open
        listening.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        listening.close()
        raise StartupError(f"{path} cannot be listened at: {error.strerror}") from None
    return listening
