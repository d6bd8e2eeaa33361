"""What the pages and the cookbook need: the APIs of the examples, and a mail server."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.cli.conftest import default_verbosity, folder, noetl

__all__ = ["default_verbosity", "folder", "noetl"]  # fixtures
ROOT = Path(__file__).resolve().parents[2]
SERVERS = {"cookbook": "CookbookServer", "quickstart": "ShopServer"}


def module(name: str) -> ModuleType:
    """The api.py of an example."""
    spec = importlib.util.spec_from_file_location(f"{name}_api", ROOT / "examples" / name / "api.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def api() -> Iterator[Callable[[str], str]]:
    """Starts the API of an example (`cookbook`, `quickstart`) and returns its address."""
    servers: list[Any] = []

    def start(name: str) -> str:
        server = getattr(module(name), SERVERS[name])()
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return str(server.url)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
