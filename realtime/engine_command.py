"""The command `midstream engine`: an engine that listens, for gateways on this machine or others."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from engine.listening.listener import Door, DoorError
from engine.listening.socket_door import SocketDoor
from realtime.bind import StartupError, bind, check_tellable, end_on_hangup, raise_descriptor_limit, tell
from realtime.certificates import CertificateError, Certificates
from realtime.config import ListenOptions, parse_listening, unknown_variables
from realtime.fleet.address import Address
from realtime.fleet.place import NEEDS_GRPC, PlaceError
from realtime.fleet.places import check_names, engine_options, token_in
from realtime.observability import logs

log = logging.getLogger("midstream")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_listening(sys.argv[1:] if argv is None else argv, os.environ)
    logs.set_up(options.log_level, options.log_format)
    end_on_hangup()
    for problem in unknown_variables(os.environ, "engine"):
        log.warning("%s", problem)
    try:
        raise_descriptor_limit()
        token = token_in(options.token_file)
        check_names(options)
        check_tellable(options.address_file)
        address = Address(options.listen)
        with _bound(address) as bound:
            _listen(options, _door(options, address, bound), token)
    except (StartupError, PlaceError, CertificateError) as problem:
        print(f"midstream: {problem}", file=sys.stderr)
        return 1
    return 0


def _listen(options: ListenOptions, door: Door, token: str) -> None:
    # As SIGTERM it ends a load at once: libraries on their way make anything of an exception that comes then.
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))
    # They bring torch with them: only once it is known that there is something to do.
    from engine.listening.hang_watch import HangWatch
    from engine.listening.listen import listen
    from engine.model.preflight import ModelError

    try:
        watch = HangWatch(2 * options.engine_silence_s)
        listen(engine_options(options), door, token, partial(tell, options.address_file), watch)
    except ModelError as problem:
        raise StartupError(f"the engine does not start: {problem}") from None
    except DoorError as problem:
        raise StartupError(f"{options.listen} cannot be listened at: {problem}") from None


def _door(options: ListenOptions, address: Address, bound: socket.socket) -> Door:
    files = Certificates(options.tls_ca_file, options.tls_cert_file, options.tls_key_file)
    tls = files.of_an_engine() if files.own else None
    if not address.is_grpc:
        return SocketDoor(bound, tls)
    try:
        # It brings gRPC: only where it was asked for.
        from engine.listening.grpc_door import GrpcDoor
    except ModuleNotFoundError:
        raise StartupError(f"--listen {options.listen} {NEEDS_GRPC}") from None
    return GrpcDoor(bound, files.contents() if files.own else None)


def _bound(address: Address) -> socket.socket:
    """Nobody can connect before it listens."""
    if address.path is None:
        return bind(*address.host_and_port, accepts=False)
    path = Path(address.path)
    listening = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            _check_gone(path)
            path.unlink()
        listening.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        listening.close()
        raise StartupError(f"{path} cannot be listened at: {error.strerror or error}") from None
    return listening


def _check_gone(path: Path) -> None:
    """Whoever listens there would go on, and nobody would ever come to it again."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return
        except BlockingIOError:  # very many wait for it to take them
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
