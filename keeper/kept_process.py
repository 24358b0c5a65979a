"""`midstream engine`, or `midstream serve`, as a child of this process, that lives no longer than it does."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import NamedTuple

from engine.model.with_parent import with_this_process
from keeper.plan import gateway_options, is_gateway
from realtime import service_manager
from realtime.bind import host_and_port

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.05  # whether it is ready
SILENCE_S = 30.0  # of a gateway that has hung
LAST_WORDS_S = 2.0  # that what it wrote takes to be read, behind its end
LONGEST_WORD = 4096  # bytes of what a gateway says of itself
EVERYWHERE = ("0.0.0.0", "[::]")


class Place(NamedTuple):
    """Where it runs."""

    host: str  # this machine's address
    ray: str  # the address of Ray's GCS


class KeptProcess:
    def __init__(self, name: str, arguments: Sequence[str], place: Place, token: str) -> None:
        """From the thread that keeps it: Linux ends it with that."""
        self._name, self._host = name, place.host
        self._folder = TemporaryDirectory(prefix="midstream-kept-")
        self._address_file = Path(self._folder.name, "address")
        token_file = Path(self._folder.name, "token")
        token_file.write_text(token)
        theirs = service_manager.not_asking(os.environ)
        environ = {name: value for name, value in theirs.items() if not name.startswith("MIDSTREAM_")}
        self._heard: socket.socket | None = None
        if is_gateway(name):  # of an engine gateways know whether it hangs
            self._heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._heard.settimeout(SILENCE_S)
            self._heard.bind(heard := str(Path(self._folder.name, "heard")))
            environ |= service_manager.asking(heard, SILENCE_S)
        command = _gateway if is_gateway(name) else _engine
        told = ["--address-file", str(self._address_file)]
        self._process = subprocess.Popen(
            with_this_process("midstream", *command(arguments, place, str(token_file)), *told),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",  # what libraries write may be anything
            env=environ,
        )
        self._last_words = ""
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    def address(self) -> str:
        """Where gateways, or clients, may come, once they may; nowhere where it ends before."""
        while self._process.poll() is None:
            if self._address_file.exists():
                if self._heard is not None:
                    Thread(target=self._end_if_hung, args=(self._heard,), daemon=True).start()
                return self._seen_from_elsewhere(self._address_file.read_text().strip())
            time.sleep(LOOK_EVERY_S)
        return ""

    def wait(self) -> str:
        """Until its end: how it came to it. What it had started, and left behind, may hold its standard error
        open for as long as it likes."""
        status = self._process.wait()
        self._reading.join(LAST_WORDS_S)
        self._folder.cleanup()
        if status < 0:
            return f"it was ended by {signal.Signals(-status).name}"
        return self._last_words or f"it ended with status {status}"

    def leave(self) -> None:
        """It tells whoever is there that it goes, hands over, and ends."""
        self._process.terminate()

    def _end_if_hung(self, heard: socket.socket) -> None:
        """It serves, and says again and again that it lives, as it would to systemd."""
        with heard:
            while self._process.poll() is None:
                try:
                    heard.recv(LONGEST_WORD)
                except TimeoutError:
                    if self._process.poll() is None:
                        log.error("%s has said nothing for %g s: it is ended", self._name, SILENCE_S)
                        self._process.kill()

    def _seen_from_elsewhere(self, address: str) -> str:
        host, _, port = address.rpartition(":")
        return host_and_port(self._host, int(port)) if host in EVERYWHERE else address

    def _read(self) -> None:
        """What it logs is Ray's to keep, as what this process logs."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                with suppress(OSError):  # a full disk: it is heard all the same
                    sys.stderr.write(line)
                self._last_words = line.strip().removeprefix("midstream: ") or self._last_words


def _engine(arguments: Sequence[str], place: Place, token_file: str) -> list[str]:
    return ["engine", "--listen", host_and_port(place.host, 0), "--token-file", token_file, *arguments]


def _gateway(arguments: Sequence[str], place: Place, token_file: str) -> list[str]:
    return ["serve", *gateway_options(place.host, arguments, place.ray, token_file)]
