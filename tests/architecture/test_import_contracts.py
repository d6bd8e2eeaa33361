"""The import contracts are kept, and each of them breaks when a bad import is written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# contract -> imports that must break it: (file, line to add)
VIOLATIONS: dict[str, list[tuple[str, str]]] = {
    "Imports point downwards": [
        ("core/model/ids.py", "import noetl.runtime.clock"),
        ("storage/factory.py", "import noetl.tools.registry"),
        ("data/formats.py", "import noetl.connections.auth"),
        ("worker/host.py", "import noetl.server.dispatch"),
        ("settings.py", "import noetl.embedded"),
        ("tool.py", "import noetl.server.orchestrator"),
        ("helpers.py", ""),  # a module that is not in any layer
    ],
    "The core's packages are layered": [
        ("core/model/ids.py", "import noetl.core.templates"),
        ("core/engine/commands.py", "import noetl.core.language"),
    ],
    "The core performs no I/O": [
        ("core/model/ids.py", "import uuid"),
        ("core/templates/__init__.py", "import random"),
        ("core/language/__init__.py", "from pathlib import Path"),
        ("core/engine/commands.py", "import time"),
        ("core/pipeline/__init__.py", "import asyncio"),
    ],
    "A worker does not import the server or the engine": [
        ("worker/__init__.py", "import noetl.core.engine.commands"),
        ("worker/process.py", "import noetl.server.http"),
    ],
    "The server runs no tool and opens no store": [
        ("server/orchestrator/__init__.py", "import noetl.storage.events"),
        ("server/http/__init__.py", "import noetl.tools.noop"),
    ],
    "Tools and storage do not import each other": [
        ("tools/noop/spec.py", "import noetl.storage.events.memory"),
        ("storage/factory.py", "import noetl.tools.noop"),
    ],
    "Only advance may evolve state": [("core/engine/commands.py", "import noetl.core.engine.evolve")],
    "Tool kinds, back ends and dialects do not import each other": [
        ("tools/noop/spec.py", "import noetl.tools.python"),
        ("core/language/dialects/canonical.py", "import noetl.core.language.dialects.v10"),
    ],
}


def broken_contracts(folder: Path) -> list[str]:
    """Names of the contracts that lint-imports calls broken in this copy of the tree."""
    ran = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert "Contracts" in ran.stdout, ran.stdout + ran.stderr
    broken = re.findall(r"^(.+?) BROKEN", ran.stdout, re.MULTILINE)
    assert (ran.returncode != 0) == bool(broken), ran.stdout
    return broken


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with its contracts."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "noetl", folder / "noetl", ignore=shutil.ignore_patterns("__pycache__", "*.js", "*.md"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@contextmanager
def written(file: Path, text: str) -> Iterator[None]:
    """A changed or a new file in the tree, until the end of the block."""
    before = file.read_text() if file.exists() else None
    file.write_text((before or "") + text)
    try:
        yield
    finally:
        if before is None:
            file.unlink()
        else:
            file.write_text(before)


@pytest.mark.parametrize(
    ("contract", "file", "line"),
    [(contract, *case) for contract, cases in VIOLATIONS.items() for case in cases],
)
def test_a_bad_import_breaks_its_contract(tree, contract, file, line):
    with written(tree / "noetl" / file, f"\n{line}\n"):
        assert contract in broken_contracts(tree)


def test_the_tree_keeps_its_contracts(tree):  # also after the changes above, which a cache must not hide
    assert broken_contracts(tree) == []


def test_every_contract_has_a_violation_that_breaks_it():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {contract["name"] for contract in config["tool"]["importlinter"]["contracts"]} == set(VIOLATIONS)


@pytest.mark.parametrize(
    "code", ["import datetime\n\nNOW = datetime.datetime.now()\n", "import uuid\n\nID = uuid.uuid4()\n"]
)
def test_the_core_reads_neither_clock_nor_random_source(tree, code):
    file = tree / "noetl" / "core" / "engine" / "clockwork.py"
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID251", str(file)]
    with written(file, f'"""Bad."""\n\n{code}'):
        ran = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "TID251" in ran.stdout
