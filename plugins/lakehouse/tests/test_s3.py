"""Tables in a store with the S3 API (moto): the conformance suite, partitions, concurrent commits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from devcluster.services import S3, fresh_bucket
from noetl.testing import TargetConformance, run_tool


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    server = S3(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server.info
    server.stop()


@pytest.fixture
def targets(store, tmp_path) -> Iterator[Callable[[str], dict[str, Any]]]:
    """New targets of a kind, in a bucket of the test."""
    numbers = itertools.count()
    with fresh_bucket(store) as bucket:
        catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://{bucket}/lake"}

        def new(kind: str) -> dict[str, Any]:
            name = f"t{next(numbers)}"
            place = (
                {"uri": f"s3://{bucket}/{name}"} if kind == "delta" else {"catalog": catalog, "table": f"shop.{name}"}
            )
            return {"kind": kind, "auth": store, **place}

        yield new


@pytest.fixture(params=["delta", "iceberg"])
def target(request, targets) -> dict[str, Any]:
    new: dict[str, Any] = targets(request.param)
    return new


def rows_of(target: dict[str, Any]) -> list[dict[str, Any]]:
    auth = target["auth"]
    if target["kind"] == "delta":
        options = {"aws_allow_http": "true", **{f"aws_{name}": value for name, value in auth.items()}}
        return list(DeltaTable(target["uri"], storage_options=options).to_pyarrow_table().to_pylist())
    properties = {f"s3.{name}": auth[name] for name in ("endpoint", "region")}
    properties |= {f"s3.{name.replace('_', '-')}": auth[name] for name in ("access_key_id", "secret_access_key")}
    table = load_catalog("default", **target["catalog"], **properties).load_table(target["table"])
    return list(table.scan().to_arrow().to_pylist())


class _Target(TargetConformance):
    modes = ("append", "replace")
    commits_once = True
    kind = ""

    @pytest.fixture
    def place(self, targets):
        return lambda: targets(self.kind)

    @pytest.fixture
    def read(self):
        return rows_of


class TestDelta(_Target):
    kind = "delta"


class TestIceberg(_Target):
    kind = "iceberg"


del _Target


def write(rows: Any, target: dict[str, Any], execution: int = 1) -> Any:
    return run_tool("transfer", {"data": rows, "targets": [target]}, execution_id=str(execution))


def test_a_partition_is_replaced_and_the_others_stay(target):
    side = {**target, "partition_by": ["day"], "mode": "replace"}
    first = [{"id": 1, "day": "2026-01-01"}, {"id": 2, "day": "2026-01-02"}]
    again = [{"id": 3, "day": "2026-01-02"}]
    for number, rows in enumerate([first, again, again], 1):
        assert write(rows, side, number).error is None
    assert sorted((row["id"], row["day"]) for row in rows_of(target)) == [(1, "2026-01-01"), (3, "2026-01-02")]


def test_concurrent_commits_lose_no_rows(target):
    assert write([{"id": 0}], target).error is None
    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(lambda number: write([{"id": number}], target, number + 1), range(1, 9)))
    refused = [outcome.error.kind for outcome in outcomes if outcome.error is not None]
    assert set(refused) <= {"db.deadlock"}  # another writer was faster: the task may be attempted again
    committed = [0, *(number for number, outcome in enumerate(outcomes, 1) if outcome.error is None)]
    assert sorted(row["id"] for row in rows_of(target)) == committed


def test_a_bucket_that_does_not_exist_is_named(target):
    wrong = {**target, "uri": "s3://no-such-bucket/t"}
    if target["kind"] == "iceberg":
        wrong = {**target, "catalog": {**target["catalog"], "warehouse": "s3://no-such-bucket/lake"}}
    outcome = write([{"id": 1}], wrong)
    assert outcome.error.kind == "storage.access" and "no-such-bucket" in outcome.error.message
    assert "\n" not in outcome.error.message
