"""A server with a worker, and the command line that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import folder, noetl, start  # noqa: F401 - fixtures
from tests.server.http.serving import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    labels = "gpu=true,zone=eu"  # of the example of placement
    cluster = Cluster(Path(tmp_path_factory.mktemp("home")), NOETL_WORKER_LABELS=labels)
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def there(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, noetl):  # noqa: F811
    """The command line with this server in its settings."""
    monkeypatch.setenv("NOETL_SERVER_URL", cluster.url)
    monkeypatch.setenv("NOETL_TOKEN", cluster.token)
    return noetl


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root
