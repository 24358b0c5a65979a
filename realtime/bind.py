"""Binding the address that the server listens at, before anything else is begun; and the welcome when all is
ready."""

from __future__ import annotations

import errno
import logging
import os
import resource
import select
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from realtime.endless_files import is_endless

log = logging.getLogger("midstream")

BACKLOG = 2048


class StartupError(Exception):
    """The server cannot start; the message is the line that says why."""


def bind(host: str, port: int, *, accepts: bool = True, shared: bool = False) -> socket.socket:
    """`accepts`: whether connections may come before anybody takes them. `shared`: with other processes of
    this user that say so."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Where the protocol is not said, asyncio leaves TCP_NODELAY alone, and each small write waits until the
    # peer has acknowledged the one before: up to 40 ms.
    try:
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:  # a system without IPv6
        raise _cannot_listen(host, port, error) from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
        if accepts:
            listening.listen(BACKLOG)  # so that whoever reads the URL, or comes sooner, is not turned away
    except (socket.gaierror, TypeError):  # the latter is said of what no name can be spelt as
        listening.close()
        raise StartupError(f"cannot listen on {host}: no address of this machine goes by that name") from None
    except OSError as error:
        listening.close()
        raise _cannot_listen(host, port, error) from None
    return listening


def _cannot_listen(host: str, port: int, error: OSError) -> StartupError:
    return StartupError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}")


def raise_descriptor_limit() -> None:
    """A connection is a file descriptor, and the usual 1,024 are soon used up: take all that we may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def end_on_hangup() -> None:
    """As on SIGTERM, but for whoever was started to go on (nohup): by itself it ends a process at once. The
    shell of a terminal that closes tells of it and the system, too, so only the first counts."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGHUP, lambda *_: None)
        signal.raise_signal(signal.SIGTERM)

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, end)


def welcome(listening: socket.socket, model: str, *, keyless: bool) -> str:
    """Where to go, who else may, and a line to try."""
    url = _url(listening)
    return (
        f"\nMidstream serves {model} at {url}\n"
        f"{_KEYLESS if keyless else ''}"
        "Try it, in another terminal:\n"
        f'  {_python()} -c "{_TRY % url}"\n'
    )


def tell(file: str, address: str) -> None:
    """Whoever finds the file finds all of it."""
    with _written(file) as new:
        if new is not None:
            new.write_text(f"{address}\n")
            new.replace(file)


def check_tellable(file: str) -> None:
    """Whether it can be written, before anything is loaded for nothing."""
    if file and is_endless(Path(file)):  # as /dev/null, which for root would be a file from then on
        raise StartupError(f"the file {file} cannot be written: it is no file")
    with _written(file) as new:
        if new is not None:
            new.touch()
            new.unlink()
            if Path(file).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


@contextmanager
def _written(file: str) -> Iterator[Path | None]:
    """The file that is to take its place, where one was named."""
    try:
        yield Path(file + ".new") if file else None
    except OSError as error:
        raise StartupError(f"the file {file} cannot be written: {error.strerror}") from None


def greet(said: str) -> None:
    """On standard output, which may be a full disk, or closed, by whoever has read enough or from the
    beginning, or a pipe or a terminal that takes nothing now: that ends no server, and holds none up."""
    if sys.stdout is None:
        return
    takes_it = select.select([], [sys.stdout], [], 0)[1]
    if takes_it:
        _say(said)
    else:
        threading.Thread(target=_say, args=(said,), name="welcome", daemon=True).start()


def _say(said: str) -> None:
    """Not by `print`, whose lock Python waits for when it ends, and gives up on with an abort."""
    try:
        os.write(sys.stdout.fileno(), f"{said}\n".encode(sys.stdout.encoding, "backslashreplace"))
    except OSError as error:
        log.warning("standard output cannot be written: %s", error.strerror)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for whatever else is printed


def address_of(listening: socket.socket) -> str:
    address, port = listening.getsockname()[:2]
    return host_and_port(address, port)


def host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _url(listening: socket.socket) -> str:
    address, port = listening.getsockname()[:2]
    # Every address of ours is also this one.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    return f"http://{host_and_port(host, port)}"


def _python() -> str:
    here = Path(sys.executable).is_relative_to(Path.cwd())
    return shlex.quote(os.path.relpath(sys.executable) if here else sys.executable)


_KEYLESS = "It has no keys: whoever reaches it may use it, as an admin. See --keys-file.\n"
_TRY = (
    "import midstream; [print(chunk.text, end='', flush=True) for chunk in "
    "midstream.sync.connect('%s').start(prompt='Once upon a time', max_tokens=100)]"
)
