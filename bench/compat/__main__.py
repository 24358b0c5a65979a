"""`make compat`: clients of OpenAI's API by others, as they are, run their tool loops and typed answers
against our chat door; then one table.

`python -m bench.compat [name ...]` runs some of them. Each is installed into a folder of its own below
`.venv`, the newest there is, or what `name==version` asks for; what was installed before is used again unless
`--newest` is said. The model is the toy: told what to say where a loop has to come to an end, and else held
by nothing but the schemas.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.server.server_process import Served

CLIENTS = Path(__file__).parent / "clients"
INSTALLED = Path(".venv/compat")
MOST_S = 120.0  # for one client


class InstallError(Exception):
    """A client cannot be had."""


@dataclass(frozen=True)
class Client:
    name: str
    script: str
    packages: Sequence[str]  # the first has the version that is told

    @property
    def folder(self) -> Path:
        return INSTALLED / self.name


@dataclass(frozen=True)
class Outcome:
    client: str
    version: str
    check: str
    trouble: str


AI = ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/deepseek", "zod")
ALL = (
    Client("openai-python", "with_openai.py", ["openai"]),
    Client("openai-agents", "with_openai_agents.py", ["openai-agents"]),
    Client("pydantic-ai", "with_pydantic_ai.py", ["pydantic-ai-slim[openai]"]),
    Client("langgraph", "with_langgraph.py", ["langchain-openai", "langgraph", "langchain"]),
    Client("openai-node", "with_openai.js", ["openai", "zod"]),
    Client("ai", "with_ai.js", AI),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compat", description=__doc__)
    names = [client.name for client in ALL]
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(names)}")
    parser.add_argument("--newest", action="store_true", help="install them anew")
    arguments = parser.parse_args()
    asked = [name.partition("==") for name in arguments.names or names]
    if unknown := {name for name, _, _ in asked} - set(names):
        parser.error(f"no client {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    by_name = {client.name: client for client in ALL}
    served = Served(scripted=True)
    try:
        outcomes = [
            outcome
            for name, _, version in asked
            for outcome in run(by_name[name], version, served.http, anew=arguments.newest)
        ]
    finally:
        served.end()
    print(table(outcomes))
    return int(any(outcome.trouble for outcome in outcomes))


def run(client: Client, version: str, url: str, *, anew: bool) -> Iterable[Outcome]:
    """What came of each of its checks; of a client that cannot be had, why."""
    print(f"running: {client.name}", file=sys.stderr, flush=True)
    in_node = client.script.endswith(".js")
    try:
        (install_in_node if in_node else install_in_python)(client, version, anew=anew)
        script = shutil.copy(CLIENTS / client.script, client.folder) if in_node else CLIENTS / client.script
        program = "node" if in_node else str(client.folder / "bin/python")
        done = subprocess.run(
            [program, str(script), url], capture_output=True, text=True, timeout=MOST_S, check=False
        )
    except (subprocess.SubprocessError, InstallError, OSError) as error:
        return [Outcome(client.name, "", "everything", str(error))]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return [Outcome(client.name, "", "everything", done.stderr[-500:])]
    return [Outcome(client.name, line["version"], line["check"], line["trouble"]) for line in lines]


def install_in_python(client: Client, version: str, *, anew: bool) -> None:
    wanted = [f"{client.packages[0]}=={version}" if version else client.packages[0], *client.packages[1:]]
    if anew or version or not _stands(client, wanted):
        venv.create(client.folder, clear=True, with_pip=True)
        pip = [str(client.folder / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        _install([*pip, "--only-binary", ":all:", *wanted], Path())
        _stamp(client, wanted)


def install_in_node(client: Client, version: str, *, anew: bool) -> None:
    wanted = [f"{client.packages[0]}@{version or 'latest'}", *client.packages[1:]]
    if anew or version or not _stands(client, wanted):
        shutil.rmtree(client.folder, ignore_errors=True)
        client.folder.mkdir(parents=True)
        (client.folder / "package.json").write_text('{"private": true, "type": "module"}')
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        _install([*npm, *wanted], client.folder)
        _stamp(client, wanted)


def _install(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(done.stderr[-500:])


def _stands(client: Client, wanted: list[str]) -> bool:
    """Laid down last: an installation that was broken off begins anew."""
    stamp = client.folder / "installed"
    return stamp.exists() and stamp.read_text() == "\n".join(wanted)


def _stamp(client: Client, wanted: list[str]) -> None:
    (client.folder / "installed").write_text("\n".join(wanted))


def table(outcomes: Iterable[Outcome]) -> str:
    rows = [f"| {one.client} | {one.version} | {one.check} | {_verdict(one)} |" for one in outcomes]
    return "\n".join(["| client | version | what it did | |", "| --- | --- | --- | --- |", *rows])


def _verdict(outcome: Outcome) -> str:
    return "FAILED: " + " ".join(outcome.trouble.split()) if outcome.trouble else "ok"


if __name__ == "__main__":
    sys.exit(main())
