"""One event loop for the tests that run tools, so that pools and sessions are reused as in a worker."""

from __future__ import annotations

import asyncio
import sys

import pytest

from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import tool_call
from noetl.tools import registry as tools
from noetl.tools.registry import load


@pytest.fixture(scope="session")
def loop():
    with asyncio.Runner() as runner:
        yield runner
        runner.run(close_loop_resources())


@pytest.fixture
def tool(loop):
    """Run one tool call in the shared loop."""

    def run(kind, input=None, **others):
        return loop.run(load(kind)(tool_call(kind, input or {}, **others)))

    return run


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """Write tiny packages with entry-point metadata, as pip would install them."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(module: str, source: str, entries: dict[str, str], group: str = "noetl.tools") -> None:
        (site / f"{module}.py").write_text(source)
        info = site / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n")
        lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
        (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n\n[{group}]\n{lines}")
        tools.refresh()

        names.append(module)

    names: list[str] = []
    yield install
    for name in names:
        sys.modules.pop(name, None)
    monkeypatch.undo()
    tools.refresh()
