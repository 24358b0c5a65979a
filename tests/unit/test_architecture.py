"""Who may import what, as tables: imports go one way, and torch stays where the model is.

midstream.protocol  <-  realtime  ->  engine.api  <-  engine
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"midstream": ROOT / "clients/python", "realtime": ROOT, "engine": ROOT}

# The longest name that fits a module decides. A name allows itself and what stands below it.
OUR_OWN = {
    "midstream": ["midstream"],
    "midstream.protocol": [],
    "midstream.__main__": ["midstream", "realtime.__main__", "realtime.keys_command"],
    "realtime": ["realtime", "midstream.protocol", "engine.api"],
    "realtime.__main__": ["realtime", "midstream.protocol", "engine"],  # wires
    "realtime.thread_link": ["realtime", "engine.api", "engine.thread"],
    "engine": ["engine"],
    "engine.api": [],
}
OTHERS = {
    "midstream": ["msgspec", "websockets"],
    "midstream.cli.board": ["prompt_toolkit"],
    "midstream.cli.chat": ["prompt_toolkit"],
    "midstream.cli.screen": ["prompt_toolkit"],
    "midstream.protocol": ["msgspec"],
    "realtime": [
        "h11",
        "jinja2",
        "msgspec",
        "prometheus_client",
        "starlette",
        "structlog",
        "tokenizers",
        "uvicorn",
        "websockets",
    ],
    "realtime.trace_export": ["opentelemetry"],
    "realtime.traces": ["msgspec", "opentelemetry"],
    "engine": [
        "filelock",
        "gguf",
        "huggingface_hub",
        "msgspec",
        "rich",
        "safetensors",
        "tokenizers",
        "torch",
        "transformers",
    ],
    "engine.api": ["msgspec"],
    "engine.kernels": ["triton"],
    "engine.paged": ["torch", "triton"],
    "engine.cache": ["msgspec"],
    "engine.log_lines": ["msgspec"],
    "engine.scheduler": ["msgspec"],
    "engine.sequence": ["msgspec"],
}
# The core of the gateway is told what happens and when: it does no I/O and has no clock.
PURE = ["outbox", "params", "pieces", "positions", "stops", "stream", "text"]
IMPURE = {"asyncio", "select", "selectors", "socket", "ssl", "threading", "time", *OTHERS["realtime"]} - {
    "msgspec",
    "tokenizers",
}


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in SOURCES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(module: str) -> Iterator[str]:
    """The absolute name of everything that `module` imports, anywhere in its text."""
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else base for name in names)


def within(name: str, tops: list[str]) -> bool:
    return any(name == top or name.startswith(top + ".") for top in tops)


def rule(module: str, table: dict[str, list[str]]) -> list[str]:
    return table[max((name for name in table if within(module, [name])), key=len)]


def breaches(module: str) -> list[str]:
    broken = []
    for name in imports(module):
        top = name.partition(".")[0]
        if top in SOURCES:
            allowed = within(name, rule(module, OUR_OWN))
        else:
            allowed = top in sys.stdlib_module_names or top in rule(module, OTHERS)
        if not allowed:
            broken.append(name)
    return broken


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_room_may(module: str) -> None:
    assert breaches(module) == []


@pytest.mark.parametrize("name", sorted({*OUR_OWN, *OTHERS, *(f"realtime.{pure}" for pure in PURE)}))
def test_every_rule_is_about_a_module_that_exists(name: str) -> None:
    assert name in MODULES


@pytest.mark.parametrize("name", PURE)
def test_the_core_of_the_gateway_does_no_io_and_has_no_clock(name: str) -> None:
    assert {imported.partition(".")[0] for imported in imports(f"realtime.{name}")} & IMPURE == set()


def test_only_the_command_reaches_for_the_commands() -> None:
    reaching = {
        module for module in MODULES if any(within(name, ["midstream.cli"]) for name in imports(module))
    }
    assert {module for module in reaching if not within(module, ["midstream.cli"])} == {"midstream.__main__"}


def test_only_the_command_reaches_for_what_wires() -> None:
    assert [module for module in MODULES if "realtime.__main__" in imports(module)] == ["midstream.__main__"]


@pytest.mark.parametrize(
    ("file", "packages"),
    [("pyproject.toml", ["realtime", "engine"]), ("clients/python/pyproject.toml", ["midstream"])],
)
def test_what_is_imported_is_declared(file: str, packages: list[str]) -> None:
    declared = tomllib.loads((ROOT / file).read_text())["project"]["dependencies"]
    names = {re.split("[<>=]", line)[0].replace("-", "_") for line in declared}
    assert {name for package in packages for name in OTHERS[package]} <= names


@pytest.mark.parametrize("package", ["midstream", "realtime"])
def test_neither_client_nor_gateway_loads_torch(package: str) -> None:
    loads = "\n".join(f"import {name}" for name in MODULES if name.partition(".")[0] == package)
    asks = "import sys; print(*{'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{loads}\n{asks}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout.strip()) == ("", "")
