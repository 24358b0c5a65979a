"""Who may import what, as tables: imports go one way, and torch stays where the model is.

midstream.protocol  <-  realtime  ->  engine.api  <-  engine
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"midstream": ROOT / "clients/python", "realtime": ROOT, "engine": ROOT, "keeper": ROOT}

# What each room may import of ours. The longest name that fits a module decides; a room allows itself.
SPOKEN = ["midstream.protocol", "engine.api", "realtime.refusal"]
CORE = ["realtime.hub", "realtime.stream", "realtime.text", "realtime.tenants", "realtime.tools", *SPOKEN]
OUR_OWN = {
    "midstream": ["midstream"],
    "midstream.protocol": [],
    "realtime": ["midstream.protocol", "engine.api"],  # what wires, and what stands in no room
    "realtime.refusal": ["midstream.protocol"],
    "realtime.codec": ["realtime.untyped", *SPOKEN],
    "realtime.untyped": [],
    "realtime.toml_text": [],
    "realtime.tools": SPOKEN,
    "realtime.text": ["realtime.tools", *SPOKEN],
    "realtime.text.grammar": ["engine.structure.checker", "realtime.tools", *SPOKEN],
    "realtime.text.special_tokens": ["engine.structure.special_names"],
    "realtime.guards": SPOKEN,
    "realtime.stream": ["realtime.guards", "realtime.text", "realtime.tools", *SPOKEN],
    "realtime.token_bucket": [],
    "realtime.backoff": [],
    "realtime.certificates": [],
    "realtime.endless_files": [],
    "realtime.pieces": [],
    "realtime.background_tasks": ["realtime.backoff"],
    "realtime.tenants": ["realtime.token_bucket", *SPOKEN],
    "realtime.hub": [
        "realtime.guards",
        "realtime.stream",
        "realtime.tenants",
        "realtime.text",
        "realtime.tools",
        *SPOKEN,
    ],
    "realtime.hub.rebuilt_stream": [
        "engine.command_digest",
        "engine.int32",
        "realtime.guards",
        "realtime.hub",
        "realtime.stream",
        "realtime.text",
        *SPOKEN,
    ],
    "realtime.hub.keeping": ["engine.history", "realtime.hub", *SPOKEN],
    "realtime.hub.stream_record": [
        "engine.history",
        "engine.int32",
        "engine.packed",
        "realtime.hub",
        "realtime.stream",
        *SPOKEN,
    ],
    "realtime.hub.deposits": ["engine.deposits", "realtime.hub", *SPOKEN],
    "realtime.hub.told": ["engine.int32", "engine.packed", "realtime.hub", "realtime.stream", *SPOKEN],
    "realtime.hub.held_blocks": ["engine.api", "engine.block_digests"],
    "realtime.hub.submission": ["engine.block_digests", "realtime.hub", "realtime.stream"],
    "realtime.hub.tokenizing_pool": ["engine.heap", "realtime.hub"],
    "realtime.transport": ["realtime.token_bucket", "realtime.work_budget", "realtime.work_ledger"],
    "realtime.access": [
        "realtime.endless_files",
        "realtime.hub",
        "realtime.tenants",
        "realtime.toml_text",
        "realtime.transport",
        *SPOKEN,
    ],
    "realtime.fleet": [
        "engine.heap",
        "realtime.backoff",
        "realtime.background_tasks",
        "realtime.certificates",
        *CORE,
    ],
    "realtime.fleet.places": [
        "engine.api",
        "engine.model.names",
        "engine.model.preflight",
        "realtime.certificates",
        "realtime.config",
        "realtime.endless_files",
        "realtime.fleet",
    ],
    "realtime.fleet.grpc_link": ["engine.grpc_frames", "realtime.certificates", "realtime.fleet", *CORE],
    "realtime.fleet.ray_agent": [
        "engine.model.with_parent",
        "realtime.backoff",
        "realtime.config",
        "realtime.fleet",
        "realtime.hub.demand",
        "realtime.hub.placement",
        "realtime.pieces",
    ],
    "realtime.fleet.demands": ["realtime.hub", "realtime.pieces"],
    "realtime.fleet.models_file": [
        "realtime.config",
        "realtime.endless_files",
        "realtime.fleet",
        "realtime.toml_text",
    ],
    "realtime.several_gateways": ["realtime", "engine.model.with_parent"],
    "realtime.engine_command": ["realtime", "engine.listening", "engine.model.preflight"],
    "realtime.fleet.thread_link": ["engine.api", "engine.thread"],
    "realtime.observability": [
        "realtime.hub",
        "realtime.stream",
        "realtime.config",
        "realtime.pieces",
        *SPOKEN,
    ],
    "realtime.observability.logs": ["engine.log_writer", "realtime.config"],
    "realtime.work_budget": ["realtime.token_bucket"],
    "realtime.work_ledger": ["realtime.pieces", "realtime.work_budget"],
    "realtime.websocket": [
        "realtime.transport",
        "realtime.codec",
        "realtime.work_budget",
        "realtime.work_ledger",
        *CORE,
    ],
    "realtime.http": [
        "realtime.access",
        "realtime.observability",
        "realtime.transport",
        "realtime.codec",
        "realtime.untyped",
        "realtime.pieces",
        "realtime.work_budget",
        "realtime.work_ledger",
        *CORE,
    ],
    "engine": [],
    "engine.api": [],
    "engine.heap": [],
    "engine.log_writer": [],
    "engine.grpc_frames": [],
    "engine.int32": [],
    "engine.command_digest": ["engine.api"],
    "engine.history": ["engine.api", "engine.int32", "engine.packed"],
    "engine.packed": [],
    "engine.deposits": [],
    "engine.listening": [
        "engine.api",
        "engine.command_digest",
        "engine.deposits",
        "engine.grpc_frames",
        "engine.history",
        "engine.int32",
    ],
    "engine.listening.listen": ["engine"],
    "engine.structure": [],
    "engine.drafts": ["engine.schedule"],
    "engine.drafts.lookup": [],
    "engine.drafts.pace": [],
    "engine.drafts.draft_model": ["engine.forward.interface", "engine.sampling", "engine.schedule"],
    "engine.block_digests": [],
    "engine.schedule": ["engine.structure", "engine.api", "engine.block_digests"],
    "engine.compiled": [],
    "engine.sampling": ["engine.schedule", "engine.nonblocking_transfer", "engine.api", "engine.compiled"],
    "engine.model": [],
    "engine.forward": ["engine.schedule", "engine.model", "engine.nonblocking_transfer", "engine.toy_model"],
    "engine.ggml": ["engine.compiled", "engine.forward.kv_pool", "engine.model", "engine.schedule"],
    "engine.memory": [
        "engine.forward",
        "engine.sampling",
        "engine.schedule",
        "engine.nonblocking_transfer",
        "engine.api",
    ],
    "engine.step": [
        "engine.drafts",
        "engine.forward.interface",
        "engine.sampling",
        "engine.schedule",
        "engine.structure",
        "engine.nonblocking_transfer",
        "engine.api",
    ],
    "engine.parallel": [
        "engine.step.command_queue",
        "engine.step.lookout",
        "engine.step.told_outlooks",
        "engine.pipe",
        "engine.api",
    ],
    "engine.parallel.follower": [
        "engine.build",
        "engine.model.preflight",
        "engine.model.with_parent",
        "engine.logs",
        "engine.pipe",
    ],
    "engine.build": ["engine"],  # puts all of it together
    "keeper": ["keeper"],
    "keeper.plan": ["realtime.config", "realtime.fleet.models_file", "engine.api"],
    "keeper.scaling": ["keeper", "realtime.hub.demand"],
    "keeper.gateways": ["realtime.hub.demand"],
    "keeper.status": ["keeper", "realtime.hub.placement"],
    "keeper.agent": ["keeper", "realtime.hub.demand", "realtime.hub.placement"],
    "keeper.kept_process": [
        "keeper.plan",
        "engine.model.with_parent",
        "realtime.bind",
        "realtime.service_manager",
    ],
    "keeper.process_actor": ["keeper", "realtime.backoff"],
    "keeper.command": [
        "keeper",
        "realtime.config",
        "realtime.fleet.place",
        "realtime.fleet.models_file",
        "realtime.fleet.outlines",
        "realtime.fleet.places",
        "realtime.fleet.watched_engine",
    ],
}
# And of others.
OTHERS = {
    "midstream": ["msgspec", "websockets"],
    "midstream.cli.terminal.streams_screen": ["prompt_toolkit"],
    "midstream.cli.chat": ["prompt_toolkit"],
    "midstream.cli.terminal.answer_screen": ["prompt_toolkit"],
    "midstream.mcp": ["mcp"],
    "midstream.protocol": ["msgspec"],
    "realtime": ["msgspec", "starlette", "uvicorn"],
    "realtime.__main__": ["uvicorn", "uvloop"],
    "realtime.tools": ["msgspec"],
    "realtime.guards": ["msgspec"],
    "realtime.text": ["jinja2", "msgspec", "tokenizers"],
    "realtime.stream": ["msgspec"],
    "realtime.tenants": ["msgspec"],
    "realtime.hub": ["msgspec"],
    "realtime.fleet": ["msgspec"],
    "realtime.fleet.grpc_link": ["grpc", "msgspec"],
    "realtime.transport": ["h11", "starlette", "uvicorn", "websockets"],
    "realtime.observability": ["msgspec", "prometheus_client", "structlog"],
    "realtime.observability.trace_export": ["opentelemetry", "requests"],
    "realtime.observability.traces": ["msgspec", "opentelemetry"],
    "keeper": [],
    "keeper.plan": ["msgspec"],
    "keeper.gateways": ["msgspec"],
    "keeper.agent": ["msgspec"],
    "keeper.autoscaler_actor": ["ray"],
    "keeper.ledger": ["msgspec", "ray"],
    "keeper.process_actor": ["ray"],
    "keeper.ray_cluster": ["ray"],
    "keeper.trial_machines": ["ray"],
    "engine": ["msgspec", "torch", "transformers"],
    "engine.api": ["msgspec"],
    "engine.compiled": ["numba"],
    "engine.nonblocking_transfer": ["numpy", "torch"],
    "engine.listening": ["msgspec"],
    "engine.listening.grpc_door": ["grpc"],
    "engine.drafts": [],
    "engine.drafts.lookup": ["numpy"],
    "engine.drafts.draft_model": ["torch"],
    "engine.schedule": ["msgspec"],
    "engine.structure": ["llguidance"],
    "engine.sampling": ["torch"],
    "engine.sampling.numba_draw": ["numpy", "torch"],
    "engine.sampling.penalties": ["numpy", "torch"],
    "engine.sampling.triton_draw": ["torch", "triton"],
    "engine.memory": ["torch"],
    "engine.step": ["torch"],
    "engine.step.told_outlooks": ["msgspec"],
    "engine.parallel": ["msgspec", "torch"],
    "engine.build": ["msgspec", "torch", "transformers"],
    "engine.forward": ["torch", "transformers"],
    "engine.forward.triton_kernels": ["triton"],
    "engine.ggml": ["safetensors", "torch", "transformers"],
    "engine.ggml.attention": ["numba", "numpy"],
    "engine.ggml.panels": ["numba", "numpy", "torch"],
    "engine.ggml.tile": ["llvmlite", "numba", "torch"],
    "engine.forward.by_triton": ["torch", "triton"],
    "engine.forward.batch_invariant": ["torch", "triton"],
    "engine.forward.rotation_kernel": ["torch", "triton"],
    "engine.model": [
        "filelock",
        "gguf",
        "huggingface_hub",
        "msgspec",
        "safetensors",
        "tokenizers",
        "torch",
        "transformers",
    ],
}
OPTIONAL = {
    "grpc",
    "mcp",
    "prompt_toolkit",
    "opentelemetry",
    "ray",
    "requests",
    "triton",
    "uvloop",
}  # behind an extra, or brought by torch
# What happens is told to these, and when: they do no I/O and look at no clock. The hub hands work to threads,
# and the gate has a bucket that leaks by itself.
PURE = [
    f"realtime.{room}.{path.stem}"
    for room in ("tools", "text", "stream", "tenants", "hub")
    for path in sorted((ROOT / "realtime" / room).glob("[!_]*.py"))
    if path.stem
    not in (
        "hub",
        "adoptions",
        "deposits",
        "keepers",
        "incoming_news",
        "frame_queues",
        "long_texts",
        "mistakes",
        "tokenizing_pool",
        "quota",
    )
]
IMPURE = {"asyncio", "logging", "select", "selectors", "socket", "ssl", "threading", "time"}


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in SOURCES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


@cache
def imports(module: str) -> list[str]:
    """The absolute name of everything that `module` imports, anywhere in its text."""
    path, found = MODULES[module], list[str]()
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            found += (name if name in MODULES else base for name in names)
    return found


def within(name: str, tops: list[str]) -> bool:
    return any(name == top or name.startswith(top + ".") for top in tops)


def rule(module: str, table: dict[str, list[str]]) -> list[str]:
    return table[max((name for name in table if within(module, [name])), key=len)]


def room(module: str) -> str:
    """Where it stands: the folder in its package, or the package."""
    package, _, below = module.partition(".")
    folder = f"{package}.{below.partition('.')[0]}"
    return folder if (SOURCES[package] / package / folder.rpartition(".")[2]).is_dir() else package


def breaches(module: str) -> list[str]:
    broken = []
    for name in imports(module):
        top = name.partition(".")[0]
        if top in SOURCES:
            allowed = within(name, [room(module), *rule(module, OUR_OWN)])
        else:
            allowed = top in sys.stdlib_module_names or top in rule(module, OTHERS)
        if not allowed:
            broken.append(name)
    return broken


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_room_may(module: str) -> None:
    assert breaches(module) == []


@pytest.mark.parametrize("name", sorted({*OUR_OWN, *OTHERS}))
def test_every_rule_is_about_a_module_that_exists(name: str) -> None:
    assert name in MODULES


@pytest.mark.parametrize("name", PURE)
def test_the_core_of_the_gateway_does_no_io_and_has_no_clock(name: str) -> None:
    assert {imported.partition(".")[0] for imported in imports(name)} & IMPURE == set()


def test_only_the_command_reaches_for_the_commands() -> None:
    reaching = {
        module for module in MODULES if any(within(name, ["midstream.cli"]) for name in imports(module))
    }
    assert {module for module in reaching if not within(module, ["midstream.cli"])} == {"midstream.__main__"}


def test_nobody_imports_what_wires() -> None:
    assert [module for module in MODULES if "realtime.__main__" in imports(module)] == []


@pytest.mark.parametrize(
    ("file", "packages"),
    [("pyproject.toml", ["realtime", "engine", "keeper"]), ("clients/python/pyproject.toml", ["midstream"])],
)
def test_what_is_imported_is_declared(file: str, packages: list[str]) -> None:
    declared = tomllib.loads((ROOT / file).read_text())["project"]["dependencies"]
    names = {re.split("[<>=]", line)[0].replace("-", "_") for line in declared}
    used = {name for module, others in OTHERS.items() if within(module, packages) for name in others}
    assert used - OPTIONAL <= names


@pytest.mark.parametrize("package", ["midstream", "realtime"])
def test_neither_client_nor_gateway_loads_torch(package: str) -> None:
    loads = "\n".join(f"import {name}" for name in MODULES if name.partition(".")[0] == package)
    asks = "import sys; print(*{'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{loads}\n{asks}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout.strip()) == ("", "")


@pytest.mark.parametrize("module", ["keeper.plan", "keeper.kept_process", "keeper.command"])
def test_whoever_keeps_engines_loads_no_gateway(module: str) -> None:
    """There is one on each machine for each engine, and a command is to answer at once."""
    asks = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", asks], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    rooms = ["realtime.hub", "realtime.stream", "realtime.text", "realtime.transport", "midstream"]
    assert [name for name in loaded if within(name, rooms) and name not in rooms] == []


DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_names_is_there(document: Path) -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|js))`", document.read_text())
    places = [ROOT, ROOT / "clients/python", ROOT / "realtime", ROOT / "engine"]
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


@pytest.mark.parametrize("package", ["realtime", "engine"])
def test_the_document_names_every_room(package: str) -> None:
    rooms = {path.parent.name for path in (ROOT / package).glob("*/*.py")} - {"toy_model"}
    document = (ROOT / "docs/architecture.md").read_text()
    assert {room for room in rooms if f"`{room}/`" not in document} == set()
