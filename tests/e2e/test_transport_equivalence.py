"""The same playbooks produce the same events in one process and on a server with a worker, over every transport."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import nats
import pytest

from noetl.embedded import open_local
from noetl.storage.factory import open_stores
from noetl.transport.nats_bus import encode_part
from tests.e2e.cases import FILES, expectation
from tests.e2e.normalized_events import normalize
from tests.server.http.serving import Cluster

RACES = {"loop_ctx_conflict"}  # the conflicting iteration depends on timing
ALIKE = [
    file
    for file in FILES
    if "needs" not in expectation(file)
    and "kind: playbook" not in file.read_text()
    and "timeout" not in file.stem
    and file.stem not in RACES
]


class Overheard:
    """Counts the requests of workers over NATS while it is open."""

    def __init__(self, url: str, prefix: str) -> None:
        self.requests = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = self._wait(nats.connect(url))
        self._wait(self._client.subscribe(f"{encode_part(prefix)}.at.>", cb=self._count))
        self._wait(self._client.flush())

    async def _count(self, message: Any) -> None:
        self.requests += 1

    def close(self) -> None:
        self._wait(self._client.drain())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, doing: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(30)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    """The normalized events of each playbook after a run in one process."""

    async def run_all() -> dict[str, Counter[str]]:
        async with await open_local(home=tmp_path_factory.mktemp("embedded")) as engine:
            logs = {}
            for file in ALIKE:
                result = await engine.run(file.read_text(), dict(expectation(file).get("payload", {})), timeout=60)
                logs[file.stem] = normalize(await engine.orchestrator.events(result.execution_id))
            return logs

    return asyncio.run(run_all())


@pytest.mark.parametrize("carrier", ["http", "nats"])
def test_playbooks_produce_the_same_events_over_every_transport(
    carrier: str, embedded: dict[str, Counter[str]], tmp_path: Path, request: pytest.FixtureRequest
):
    assert len(ALIKE) >= 30

    async def logged(store: str, ids: dict[str, str]) -> dict[str, Counter[str]]:
        events, _ = open_stores(store)
        logs = {name: normalize(await events.read(execution_id)) for name, execution_id in ids.items()}
        await events.close()
        return logs

    # Over HTTP on SQLite, over NATS as in a cluster: on Postgres.
    store = str(tmp_path / "noetl.db") if carrier == "http" else request.getfixturevalue("database")
    settings = {"NOETL_STORE": store}
    if carrier == "nats":
        settings |= {"NOETL_NATS_URL": request.getfixturevalue("nats_server"), "NOETL_NATS_PREFIX": tmp_path.name}
    overheard = Overheard(settings["NOETL_NATS_URL"], tmp_path.name) if carrier == "nats" else None
    cluster = Cluster(tmp_path, **settings)
    try:
        cluster.start_server()
        cluster.start_worker()
        ids = {}
        for file in ALIKE:
            body = {"content": file.read_text(), "payload": expectation(file).get("payload", {})}
            status, document = cluster.ask("POST", "/api/execute", body)
            assert status == 202, (file.stem, document)
            ids[file.stem] = document["execution_id"]
        for execution_id in ids.values():
            cluster.finished(execution_id, 60)
    finally:
        cluster.stop()
        if overheard is not None:
            overheard.close()
    assert overheard is None or overheard.requests > len(ids)
    remote = asyncio.run(logged(store, ids))
    different = {
        name: (local - remote[name], remote[name] - local) for name, local in embedded.items() if local != remote[name]
    }
    assert different == {}, "\n".join(f"{name}: {pair}" for name, pair in different.items())
