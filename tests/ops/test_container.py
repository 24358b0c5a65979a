"""The image of ops/container, made and run by hand: its own commands in a file system of its own, without the
downloads, and then the server as the first process there, as nobody, with little that it may write to.

That needs no container engine, but root, and Linux.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from realtime.config import parse
from realtime.keys_command import main as keys
from tests.ops import containerfile
from tests.ops.shutdown import longest_s
from tests.server.server_process import PATIENCE_S

ROOT = Path(__file__).parents[2]
BUILD, FINAL = containerfile.stages()
ENVIRONMENT = containerfile.environment(FINAL)
CACHE = "/var/cache/midstream"
NOBODY = "65534"
UNSHARED = ["unshare", "--mount", "--pid", "--fork"]
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]


# -- what is written there -----------------------------------------------------------------------------


def test_only_what_is_needed_and_tracked_is_copied() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for source, _ in containerfile.copied(BUILD):
        assert any(line == source or line.startswith(f"{source}/") for line in tracked.splitlines()), source
    assert containerfile.copied(FINAL) == [], "nothing but what was built"


def test_it_is_nobodys_and_writes_to_one_folder() -> None:
    assert containerfile.one(FINAL, "USER").text == f"{NOBODY}:{NOBODY}"
    assert containerfile.one(FINAL, "VOLUME").text == CACHE
    assert (ENVIRONMENT["HOME"], ENVIRONMENT["XDG_CACHE_HOME"]) == (CACHE, CACHE)


def test_it_is_never_open_and_its_port_is_the_servers() -> None:
    options = parse(containerfile.one(FINAL, "ENTRYPOINT").command[2:], ENVIRONMENT)
    assert options.keys_file == "/etc/midstream/keys.toml"
    assert containerfile.one(FINAL, "EXPOSE").text == str(options.port)


def test_its_end_is_waited_for_where_the_documents_start_it() -> None:
    commands = (ROOT / "docs/operations.md").read_text().partition("## In a container")[2].split("```")[1]
    assert f"--stop-timeout {longest_s(ENVIRONMENT):g} " in commands
    assert f"-v midstream-cache:{CACHE} " in commands
    assert f":{Path(ENVIRONMENT['MIDSTREAM_KEYS_FILE']).parent}:ro " in commands
    assert f"-f {containerfile.FILE.relative_to(ROOT)} " in commands


def test_no_tool_is_installed_into_the_final_stage() -> None:
    assert [each.command[0] for each in containerfile.of(FINAL, "RUN")] == ["install"]
    assert [each.flags for each in containerfile.of(FINAL, "COPY")] == [{"from": "build"}]


# -- as it is made and run -----------------------------------------------------------------------------

# What is mounted is so for this process and its children alone. `/opt` begins empty, as it does in an image;
# instead of the base image's Python and the layer of downloads there are those that these tests run with.
MAKE = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /opt
mount -t tmpfs tmpfs /var/cache
mkdir /opt/python /opt/packages /opt/source
mount --bind {python} /opt/python
mount --bind {packages} /opt/packages
mount -o remount,bind,ro /opt/python
mount -o remount,bind,ro /opt/packages
cd /opt/source
{copy}
PATH=/opt/python/bin:$PATH {venv}
cd /opt/midstream/lib/python*/site-packages
echo 'import sys; sys.path.insert(0, "/opt/packages")' > packages.pth
cd /opt/source
PIP_NO_DEPS=1 PIP_NO_INDEX=1 PIP_IGNORE_INSTALLED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 {install} >&2
cd /
{folder}
cp {keys} /opt/keys.toml
chmod 644 /opt/keys.toml
mount -t tmpfs tmpfs /tmp
mount -o remount,ro /opt
mount -o remount,bind,ro /
exec env -i {environment} {nobody} {entry}
"""


class Container:
    """A server, as the first process of its own process namespace."""

    def __init__(self, folder: Path, **variables: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        ours = {
            "MIDSTREAM_HOST": "127.0.0.1",
            "MIDSTREAM_PORT": str(self.port),
            "MIDSTREAM_KEYS_FILE": "/opt/keys.toml",
            "MIDSTREAM_MODEL": "toy",
            "LD_LIBRARY_PATH": "/opt/python/lib",  # a Python may have been built for another place
        }
        self.environment = ENVIRONMENT | ours | variables
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            [*UNSHARED, "--mount-proc", "--kill-child", "sh", "-c", script(folder, self.environment)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    @property
    def first(self) -> int:
        """The process that is the first in there, as it is called out here."""
        task = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return int(task.read_text())

    def run(self, command: list[str]) -> int:
        """The status of a command that is run in there, as the same user."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        inside = ["nsenter", "-t", str(self.first), "--mount", "--pid", "env", "-i", *variables, *AS_NOBODY]
        return subprocess.run([*inside, *command], capture_output=True, check=False).returncode

    def status(self, path: str) -> int:
        """Of an answer over HTTP."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code

    def until_it_serves(self) -> None:
        assert self._process.stdout is not None
        assert any("Midstream serves" in line for line in self._process.stdout), self.log()

    def log(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text()

    def told_to_end(self) -> int:
        os.kill(self.first, signal.SIGTERM)
        return self._process.wait(PATIENCE_S)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()  # and what it has begun, by --kill-child
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


def script(folder: Path, variables: dict[str, str]) -> str:
    venv, _, install = (shlex.join(each.command) for each in containerfile.of(BUILD, "RUN"))
    copies = (
        f"mkdir -p {Path(target).parent}; cp -r {shlex.quote(str(ROOT / source))} {target}"
        for source, target in containerfile.copied(BUILD)
    )
    return MAKE.format(
        python=shlex.quote(sys.base_prefix),
        packages=shlex.quote(sysconfig.get_path("purelib")),
        copy="\n".join(copies),
        venv=venv,
        install=shlex.join(["env", *(each.text for each in containerfile.of(BUILD, "ARG"))]) + " " + install,
        folder=shlex.join(containerfile.one(FINAL, "RUN").command),
        keys=shlex.quote(str(folder / "keys.toml")),
        environment=shlex.join(f"{name}={value}" for name, value in variables.items()),
        nobody=shlex.join(AS_NOBODY),
        entry=shlex.join(containerfile.one(FINAL, "ENTRYPOINT").command),
    )


def can_make_one() -> bool:
    """Whether we may have mounts of our own."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "nsenter"))):
        return False
    tried = subprocess.run([*UNSHARED, "mount", "--make-rprivate", "/"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    if not can_make_one():
        pytest.skip("an image is made by root alone, on Linux, where mounts are allowed")
    assert keys(["add", "alice", "--file", str(tmp_path / "keys.toml")], {}) == 0
    container = Container(tmp_path)
    yield container
    container.end()


def test_what_was_built_serves_as_nobody_and_ends_when_it_is_told(container: Container) -> None:
    container.until_it_serves()
    assert container.status("/readyz") == 200
    assert container.status("/") == 200, "the page came along"
    assert container.status("/v1/streams") == 401, "keys are asked for"
    health = containerfile.one(FINAL, "HEALTHCHECK").arguments.removeprefix("CMD ")
    assert container.run(containerfile.Instruction("CMD", health).command) == 0
    for folder in ("/", "/opt/midstream", "/etc", "/var/tmp"):
        assert container.run(["touch", f"{folder}/x"]) != 0, folder
    assert container.run(["touch", f"{CACHE}/x"]) == 0
    assert container.told_to_end() == 0, container.log()
    assert "Traceback" not in container.log()
