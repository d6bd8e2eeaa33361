"""Expired results are deleted, periodically by a server and at its close by the embedded engine."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from noetl.core.model.bundle import Bundle, file_digest
from noetl.embedded import open_local
from noetl.errors import StoreUnavailable
from noetl.runtime.tasks import running
from noetl.server.lifecycle.retention import (
    collect,
    delete_old,
    delete_unused_bundles,
    delete_unused_texts,
    run_retention,
)
from noetl.storage.factory import open_stores, open_task_logs
from noetl.storage.results import open_results
from tests.conformance.result_store import chunked


class Clock:
    """Time that passes only by sleeping; `passed` is set when the fourth sleep begins."""

    def __init__(self, start: float) -> None:
        self.at = start
        self.sleeps = 0
        self.passed = asyncio.Event()

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.sleeps += 1
        if self.sleeps == 4:
            self.passed.set()
            await asyncio.Event().wait()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_server_deletes_expired_results_periodically(tmp_path: Path) -> None:
    async def scenario() -> int:
        clock = Clock(1_800_000_000.0)
        results = open_results(f"file://{tmp_path}", clock=clock.now)
        await results.put("a", chunked(b"x"), content_type="text/plain", ttl="15m")
        await results.put("b", chunked(b"y"), content_type="text/plain")
        async with running(partial(run_retention, results, clock, every=600)):
            await clock.passed.wait()
        return len(files(tmp_path))

    assert asyncio.run(scenario()) == 1


def test_task_logs_are_deleted_with_their_execution(tmp_path: Path) -> None:
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow: [{step: s, tool: {kind: python, code: "print('kept')"}}]
"""

    async def scenario() -> None:
        async with await open_local(home=tmp_path) as engine:
            first, second = await engine.run(text), await engine.run(text)
        events, _ = open_stores(f"sqlite://{tmp_path}/noetl.db")
        logs = open_task_logs(events)
        results = open_results(f"file://{tmp_path}/results")
        try:
            assert await logs.last(first.execution_id) == await logs.last(second.execution_id) == 1
            assert await delete_old(events, results, time.time() + 60, logs) == 2
            assert await logs.last(first.execution_id) == await logs.last(second.execution_id) == 0
        finally:
            await results.close()
            await events.close()

    asyncio.run(scenario())


def test_a_bundle_is_deleted_after_the_last_execution_of_its_playbook(tmp_path: Path) -> None:
    text = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow: [{step: s, tool: {kind: noop}}]
"""
    bundle = Bundle({"p.yaml": file_digest(text.encode())})

    async def scenario() -> None:
        async with await open_local(home=tmp_path) as engine:
            ran = await engine.run(text)
        events, playbooks = open_stores(f"sqlite://{tmp_path}/noetl.db")
        results = open_results(f"file://{tmp_path}/results")
        try:
            summary = await events.summary(ran.execution_id)
            assert summary is not None
            await playbooks.save_bundle(bundle)
            await playbooks.save_files({file_digest(text.encode()): text.encode()})
            statement = "UPDATE playbook_texts SET file = $1 WHERE digest = $2"
            await events.sql.execute(statement, f"bundle:{bundle.digest}/p.yaml", summary.playbook)  # type: ignore[attr-defined]
            assert await delete_unused_bundles(events, playbooks, 0) == 0
            assert await playbooks.bundle(bundle.digest) == bundle
            assert await delete_old(events, results, time.time() + 60) == 1
            assert await delete_unused_bundles(events, playbooks) == 0, "a bundle is kept for a day after its last use"
            assert await delete_unused_bundles(events, playbooks, 0) == 2
            assert await playbooks.bundle(bundle.digest) is None
        finally:
            await results.close()
            await events.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_texts_of_deleted_executions_are_deleted(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite://{tmp_path}/noetl.db" if kind == "sqlite" else request.getfixturevalue("database")
    texts = [
        f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: p{number}}}
workload: {{note: "nul \\\\0", playbook: other}}
workflow: [{{step: s, tool: {{kind: noop}}}}]
"""
        for number in range(3)
    ]

    async def stored(events: Any) -> int:
        (count,) = await events.sql.row(f"SELECT count(*) FROM {events.sql.prefix}playbook_texts")
        return int(count)

    async def scenario() -> None:
        async with await open_local(home=tmp_path, store=store) as engine:
            for text in texts:
                await engine.run(text)
        events, playbooks = open_stores(store)
        results = open_results(f"file://{tmp_path}/results")
        try:
            assert await delete_unused_texts(events, playbooks, 0) == 0 and await stored(events) == 3
            await delete_old(events, results, time.time() + 60)
            assert await delete_unused_texts(events, playbooks) == 0, "a text is kept for a day after its last use"
            assert await delete_unused_texts(events, playbooks, 0) == 3 and await stored(events) == 0
        finally:
            await results.close()
            await events.close()
        # a process that had stored it before stores it again later
        async with await open_local(home=tmp_path, store=store) as engine:
            await engine.run(texts[0])
            monkeypatch.setattr("noetl.server.orchestrator.catalog.STORED_SECONDS", 0.0)
            events, playbooks = open_stores(store)
            (text,) = await playbooks.unregistered_texts(0, 10)
            assert await playbooks.delete_texts([text], 0) == 1
            await engine.run(texts[0])
            assert await playbooks.text(text) is not None
            await events.close()

    asyncio.run(scenario())


def test_an_unreachable_store_is_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        requested = 0

        async def collect(self, now: float) -> int:
            self.requested += 1
            raise StoreUnavailable("no such host")

    async def scenario(store: Any) -> None:
        clock = Clock(0.0)
        async with running(partial(run_retention, store, clock, every=1)):
            await clock.passed.wait()
        assert store.requested == 4

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario(Broken()))
    assert "no such host" in caplog.text


def test_the_embedded_engine_deletes_expired_results_when_it_closes(tmp_path: Path) -> None:
    async def scenario() -> None:
        old = open_results(f"file://{tmp_path}/results", clock=lambda: 1_000_000_000.0)
        await old.put("a", chunked(b"x"), content_type="text/plain", ttl="1h")
        async with await open_local(store="memory:", results=f"file://{tmp_path}/results", home=tmp_path):
            assert len(files(tmp_path / "results")) == 1

    asyncio.run(scenario())
    assert files(tmp_path / "results") == []


class Log:
    """Event store, result store, task logs, catalog and cluster that note every call."""

    def __init__(self, *, old: int = 0, turn: bool = True, problem: str = "") -> None:
        self.calls: list[tuple[str, Any]] = []
        self.left = old
        self.turn = turn
        self.problem = problem

    def _note(self, name: str, value: Any = None) -> None:
        self.calls.append((name, value))
        if name == self.problem:
            raise StoreUnavailable(f"{name} failed")

    async def acquire_turn(self, role: str, seconds: float) -> bool:
        self._note("turn", (role, seconds))
        return self.turn

    async def collect(self, now: float) -> int:
        self._note("collect", now)
        return 3

    async def expired(self, before: float, most: int) -> list[str]:
        self._note("expired", before)
        found, self.left = [str(number) for number in range(min(self.left, most))], max(0, self.left - most)
        return found

    async def forget(self, executions: list[str]) -> int:
        self._note("forget", len(executions))
        return 0

    async def drop(self, executions: list[str]) -> None:
        self._note("drop", len(executions))

    async def tidy(self, now: float) -> int:
        self._note("tidy", now)
        return 2

    async def unregistered_bundles(self, age: float, limit: int) -> list[Any]:
        self._note("bundles", age)
        return [("b1", ["t1"]), ("b2", ["t2", "t3"])]

    async def executed_playbooks(self, texts: list[str]) -> set[str]:
        return {"t3", "t5"} & {*texts}

    async def keep_bundle(self, bundle: str) -> None:
        self._note("keep", bundle)

    async def delete_bundles(self, bundles: list[str], age: float) -> int:
        self._note("delete", bundles)
        return len(bundles)

    async def unregistered_texts(self, age: float, limit: int) -> list[str]:
        self._note("texts", age)
        return ["t4", "t5"]

    async def keep_texts(self, texts: list[str]) -> None:
        self._note("keep texts", texts)

    async def delete_texts(self, texts: list[str], age: float) -> int:
        self._note("delete texts", texts)
        return len(texts)


def turn_of(log: Any, **options: Any) -> list[str]:
    """The calls of the first turn."""

    async def scenario() -> None:
        clock = Clock(100_000.0)
        async with running(partial(run_retention, log, clock, every=1_000, **options)):
            await clock.passed.wait()

    asyncio.run(scenario())
    names = [name for name, _ in log.calls]
    return names[: names.index(names[0], 1)]


PLAYBOOKS = ["bundles", "keep", "delete", "texts", "keep texts", "delete texts"]


def test_a_turn_deletes_results_then_executions_then_bundles_and_texts() -> None:
    log = Log(old=501)
    names = turn_of(log, store=log, task_logs=log, playbooks=log, retention=5_000.0)
    deletion = ["expired", "forget", "forget", "drop"]
    assert names == ["collect", *deletion, *deletion, "expired", "tidy", *PLAYBOOKS]
    found = dict(log.calls[:17])
    assert log.calls[1] == ("expired", 95_000.0) and log.calls[4] == ("drop", 500) and log.calls[8] == ("drop", 1)
    assert (found["tidy"], found["bundles"], found["keep"]) == (100_000.0, 86_400.0, "b2")
    assert ("delete", ["b1"]) in log.calls
    assert (found["texts"], found["keep texts"], found["delete texts"]) == (86_400.0, ["t5"], ["t4"])


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["collect"]),
        ({"store": True}, ["collect", "tidy"]),
        ({"store": True, "retention": 0.0}, ["collect", "expired", "tidy"]),
        ({"store": True, "playbooks": True}, ["collect", "tidy", *PLAYBOOKS]),
        ({"playbooks": True}, ["collect"]),
    ],
    ids=["results", "store", "nothing kept", "bundles", "no store"],
)
def test_a_turn_deletes_only_what_is_configured(options: dict[str, Any], names: list[str]) -> None:
    log = Log()
    assert turn_of(log, **{name: log if value is True else value for name, value in options.items()}) == names


@pytest.mark.parametrize("problem", ["expired", "tidy", "bundles", "texts"])
def test_what_fails_is_logged_and_the_rest_of_the_turn_goes_on(problem: str, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(old=1, problem=problem)
    names = turn_of(log, store=log, playbooks=log, retention=1.0)
    assert problem in names and "bundles" in names
    assert f"{problem} failed" in caplog.text
    assert [name for name, _ in log.calls].count("collect") == 4  # the next turns come


def test_one_server_of_a_cluster_takes_each_turn() -> None:
    log = Log(turn=False)
    assert turn_of(log, cluster=log, store=log) == ["turn"] and len(log.calls) == 4
    assert log.calls[0] == ("turn", ("housekeeping", 900.0))
    unreachable = Log(problem="turn")
    assert turn_of(unreachable, cluster=unreachable, store=unreachable) == ["turn"]
    log = Log()
    assert turn_of(log, cluster=log, store=log) == ["turn", "collect", "tidy"]


def test_a_failed_collection_has_deleted_nothing() -> None:
    assert asyncio.run(collect(Log(problem="collect"), Clock(5.0))) == 0  # type: ignore[arg-type]
    assert asyncio.run(collect(Log(), Clock(5.0))) == 3  # type: ignore[arg-type]
