"""The Makefile's two set-ups, with a Python that only notes what it is told: who gets what, and when anew;
and what the project declares is what its modules import."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
INPUTS = ("Makefile", "pyproject.toml", "clients/python/pyproject.toml", "requirements.lock")
SERVING = "install -c requirements.lock --no-build-isolation -e clients/python[cli] -e ."
DEVELOPING = f"{SERVING}[dev]"

# It makes of itself the environment that it is asked for; there, it notes what it is to install.
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python && cp "$0" .venv/bin/midstream;;
  "-m pip install"*) test ! -e no-network && echo "$*" | sed 's/.*-version-check/install/' >> told;;
  serve*) echo "$*" >> told;;
esac
"""


class Checkout:
    """A folder with what the set-up depends on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in INPUTS:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        python = folder / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)

    def make(self, *words: str, status: int = 0) -> list[str]:
        """What was installed and run, but for setuptools, which comes first."""
        told = self.folder / "told"
        told.write_text("")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(
            ["make", "-s", *words, f"PYTHON={self.folder / 'python'}"],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) == (status != 0), done.stderr
        return [line for line in told.read_text().splitlines() if not line.endswith("lock setuptools")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    if shutil.which("make") is None:
        pytest.skip("make was not found: install it (Debian, Ubuntu: apt install make)")
    return Checkout(tmp_path)


def test_serving_installs_what_serving_needs(checkout: Checkout) -> None:
    assert checkout.make("serve", "MODEL=toy") == [SERVING, "serve --model toy"]
    assert checkout.make("serve") == ["serve"], "once"


def test_developing_installs_more_and_serving_is_a_part_of_it(checkout: Checkout) -> None:
    checkout.make("serve")
    assert checkout.make("setup") == [DEVELOPING]
    assert checkout.make("setup") == []
    assert checkout.make("serve") == ["serve"]


@pytest.mark.parametrize("name", INPUTS[1:])
def test_a_change_of_what_it_depends_on_is_a_new_set_up(checkout: Checkout, name: str) -> None:
    checkout.make("setup")
    with (checkout.folder / name).open("a") as file:
        file.write("# another\n")
    assert checkout.make("serve") == [SERVING, "serve"]
    assert checkout.make("setup") == [DEVELOPING], "which may ask for more than before"


@pytest.mark.parametrize("before", [[], ["serve"], ["setup"]])
def test_an_interrupted_set_up_is_none(checkout: Checkout, before: list[str]) -> None:
    checkout.make(*before)
    with (checkout.folder / "pyproject.toml").open("a") as file:
        file.write("# another\n")
    (checkout.folder / "no-network").touch()
    assert checkout.make("setup", status=2) == []
    (checkout.folder / "no-network").unlink()
    assert checkout.make("serve") == [SERVING, "serve"]
    assert checkout.make("setup") == [DEVELOPING]


# -- what the project declares -----------------------------------------------------------------------


def test_a_smaller_torch_is_had_as_the_readme_says() -> None:
    """Where both indexes are asked the build for CPUs is what the lock names, and newer than the other."""
    assert (
        "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make serve"
        in (ROOT / "README.md").read_text()
    )
    (pin,) = re.findall(r"(?m)^torch(==\S+)$", (ROOT / "requirements.lock").read_text())
    version = pin.removeprefix("==")
    assert SpecifierSet(pin).contains(f"{version}+cpu")
    assert Version(f"{version}+cpu") > Version(version)
    makefile = (ROOT / "Makefile").read_text()
    assert "PIP_" not in makefile, "what the environment says to pip holds"
    assert "--index-url" not in makefile


def imported(folder: str) -> Iterator[str]:
    """The names of the top modules that a folder's modules import, wherever in them."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0]


def declared(extra: str | None = None) -> set[str]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = table["optional-dependencies"][extra] if extra else table["dependencies"]
    return {canonicalize_name(Requirement(line).name) for line in listed}


def test_the_server_declares_what_it_imports_and_nothing_else() -> None:
    ours = {"engine", "realtime"} | sys.stdlib_module_names
    # What a CUDA device may have beside torch: each is imported where it is found only.
    optional = {"triton", "flash_attn", "flashinfer"}
    modules = {*imported("engine"), *imported("realtime")} - ours - optional
    homes = packages_distributions()
    behind_extras = {"opentelemetry", "requests", "grpc", "uvloop"}
    needed = {canonicalize_name(homes[module][0]) for module in modules - behind_extras}
    assert needed | {"xllamacpp"} == declared()  # of which a library is loaded, and nothing imported
    assert behind_extras <= modules
    assert declared("grpc") == {"grpcio"}
    assert declared("uvloop") == {"uvloop"}
    assert all(name.startswith("opentelemetry-") for name in declared("otel") - {"requests"})
