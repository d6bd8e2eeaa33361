from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.http.serving import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(Path(tmp_path_factory.mktemp("home")))
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()
