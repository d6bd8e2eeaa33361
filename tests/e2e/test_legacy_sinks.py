"""Sinks and chunks of 2025-11 store in real Postgres, DuckDB and S3 what they say, and so do their migrated forms."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import S3FileSystem

from noetl import tools
from noetl.dsl.migrate.v2025_11_to_canonical import migrate
from noetl.local import open_local
from tests.e2e.api import serving

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: legacy_sinks}
executor: {spec: {extensions: [legacy]}}
keychain:
  - {name: store, kind: static, value: S3}
workload: {pg: "", api: "", bucket: "", duck: "", run: a, s3_auth: store, users: [{id: 1}, {id: 2}]}
workflow:
  # 7.1: chunks of an answer to several places
  - step: fetch_and_store
    result: fetched
    tool:
      kind: http
      result: api_data
      url: "{{ context.workload.api }}/items"
      chunk: {size: 1, path: data.items}
      sink:
        - kind: postgres
          auth: "{{ context.workload.pg }}"
          table: "{{ context.workload.run }}_cache"
          mode: append
          args:
            data: "{{ api_data.items }}"
            chunk_index: "{{ chunk.index }}"
        - kind: s3
          auth: "{{ context.workload.s3_auth }}"
          path: "s3://{{ context.workload.bucket }}/{{ context.workload.run }}/chunk_{{ chunk.index }}.parquet"
          format: parquet
        - kind: s3
          auth: "{{ context.workload.s3_auth }}"
          path: "s3://no-such-bucket/x.parquet"
          on_error: warn
    next: [{step: process_users}]
  # 7.2: a loop whose iterations are chunked
  - step: process_users
    result: user_results
    loop:
      collection: "{{ context.workload.users }}"
      element: user
      mode: sequential
    tool:
      kind: postgres
      result: activity
      auth: "{{ context.workload.pg }}"
      query: "SELECT n, n * {{ user.id }} AS times FROM generate_series(1, 10) AS g(n)"
      chunk: {size: 4}
      sink:
        - kind: duckdb
          file: "{{ context.workload.duck }}"
          table: "{{ context.workload.run }}_user_{{ user.id }}"
          mode: replace
          args:
            activities: "{{ activity.rows }}"
    next: [{step: bulk_transfer}]
  # 7.3: a transfer to three places
  - step: bulk_transfer
    result: transfer_summary
    tool:
      kind: transfer
      result: transfer_data
      source:
        kind: postgres
        auth: "{{ context.workload.pg }}"
        query: "SELECT n AS id, 'name ' || n AS full_name FROM generate_series(1, 25) AS g(n)"
        chunk: {size: 10}
      sink:
        - kind: postgres
          auth: "{{ context.workload.pg }}"
          table: "{{ context.workload.run }}_copy"
          mode: append
          mapping:
            id: "{{ transfer_data.id }}"
            name: "{{ transfer_data.full_name }}"
        - kind: duckdb
          file: "{{ context.workload.duck }}"
          table: "{{ context.workload.run }}_facts"
          mode: append
          args:
            rows: "{{ transfer_data.rows }}"
        - kind: s3
          auth: "{{ context.workload.s3_auth }}"
          path: "s3://{{ context.workload.bucket }}/{{ context.workload.run }}/archive_{{ chunk.index }}.parquet"
          format: parquet
    next: [{step: enrich}]
  # 7.4 and 8.2: a parallel loop that upserts
  - step: enrich
    loop:
      collection: "{{ context.workload.users }}"
      element: user
      mode: parallel
    tool:
      kind: http
      spec:
        method: POST
        url: "{{ context.workload.api }}/enrich"
        json: {score: "{{ user.id * 10 }}"}
      result:
        pick: "{{ {'id': user.id, 'score': this.got.score} }}"
        as: last_score
        collect: {into: scores, mode: list}
        sink:
          - postgres:
              auth: "{{ workload.pg }}"
              table: "{{ workload.run }}_scores"
              mode: upsert
              key: id
              args:
                id: "user {{ out.id }}"
                score: "{{ out.score }}"
    next: [{step: summary}]
  - step: summary
    when: "{{ loop_done('enrich') and context.user_results is defined }}"
    tool:
      kind: python
      args: {items: "{{ context.fetched.items }}"}
      code: |
        def main(context):
            rows = sum(each["row_count"] for each in context.get("user_results", []))
            return {"items": len(context["items"]), "rows": rows, "moved": context.transfer_summary.rows,
                    "chunks": context.transfer_summary["chunks"], "scores": context.scores}
"""


@pytest.mark.parametrize("form", ["as it is", "migrated"])
def test_sinks_store_what_they_say(form: str, database: str, s3: dict[str, Any], bucket: str, tmp_path: Path):
    text = PLAYBOOK.replace("value: S3", "value: " + json.dumps(s3))
    if form == "migrated":
        made = migrate(text, tools.specs())
        assert made.notes == ()
        assert "sink:" not in made.text
        assert made.text.count("# 7.") == 4
        text = made.text
    with psycopg.connect(database) as pg:
        pg.execute("CREATE TABLE a_scores (id text PRIMARY KEY, score int)")
    duck = tmp_path / "analytics.duckdb"
    payload = {"pg": database, "bucket": bucket, "duck": str(duck)}

    async def run(address: str) -> Any:
        async with await open_local(home=tmp_path / "home") as engine:
            return await engine.run(text, {**payload, "api": address}, timeout=60)

    with serving() as address:
        result = asyncio.run(run(address))
    assert result.status == "success", result.error
    assert result.output["data"] == {
        "items": 2, "rows": 20, "moved": 25, "chunks": 3, "scores": [{"id": 1, "score": 10}, {"id": 2, "score": 20}],
    }  # fmt: skip
    with psycopg.connect(database) as pg:
        cached = pg.execute("SELECT chunk_index, data FROM a_cache ORDER BY 1").fetchall()
        assert [(index, as_data(data)) for index, data in cached] == [(0, {"id": 1}), (1, {"id": 2})]
        assert pg.execute("SELECT count(*), min(name), max(id) FROM a_copy").fetchone() == (25, "name 1", 25)
        assert pg.execute("SELECT id, score FROM a_scores ORDER BY id").fetchall() == [("user 1", 10), ("user 2", 20)]
    with duckdb.connect(str(duck)) as store:
        assert store.execute("SELECT count(*), sum(times) FROM a_user_2").fetchone() == (10, 110)
        assert store.execute("SELECT count(*) FROM a_facts").fetchone() == (25,)
    assert [rows_of(s3, bucket, f"a/chunk_{index}.parquet") for index in (0, 1)] == [[{"id": 1}], [{"id": 2}]]
    assert [len(rows_of(s3, bucket, f"a/archive_{index}.parquet")) for index in (0, 1, 2)] == [10, 10, 5]


def as_data(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def rows_of(s3: dict[str, Any], bucket: str, key: str) -> list[dict[str, Any]]:
    store = S3FileSystem(
        access_key=s3["access_key_id"], secret_key=s3["secret_access_key"], region=s3["region"],
        endpoint_override=s3["endpoint"],
    )  # fmt: skip
    return pq.read_table(f"{bucket}/{key}", filesystem=store).to_pylist()
