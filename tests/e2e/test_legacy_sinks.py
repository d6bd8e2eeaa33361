"""The examples of the 2025-11 document, sections 5 to 8 of both its generations, against real Postgres, DuckDB and S3.

Each runs as it is and as `noetl migrate` writes it: the same rows, the same outputs, the same events.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import msgspec
import psycopg
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import S3FileSystem

from devcluster import services
from noetl.core.language.rewrite.migrate.v2025_11_to_canonical import migrate
from noetl.embedded import open_local
from noetl.tools import registry as tools
from tests.e2e.api import serving
from tests.e2e.normalized_events import events_by_run

HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: example}
executor: {spec: {extensions: [legacy]}}
keychain:
  - {name: archive, kind: static, value: S3}
workload:
  pg_auth: PG
  duckdb: HOME/analytics.duckdb
  s3_auth: archive
  api_url: API
"""
CHILD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: scorer}
workload: {user: null, user_data: {rating: 0}}
workflow:
  - step: start
    tool: {kind: python, input: {user: "{{ workload.user_data }}"}, code: "result = {'value': 42, 'profile_score': user['rating'] / 10}"}
"""


class World(NamedTuple):
    """Where a playbook has stored something."""

    pg: str
    duck: Path
    s3: dict[str, Any]
    bucket: str

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Of Postgres."""
        with psycopg.connect(self.pg) as connection:
            return connection.execute(query).fetchall()

    def lake(self, query: str) -> list[tuple[Any, ...]]:
        """Of DuckDB."""
        with duckdb.connect(str(self.duck)) as connection:
            return connection.execute(query).fetchall()

    def parquet(self, key: str) -> list[dict[str, Any]]:
        """Of S3."""
        return pq.read_table(f"{self.bucket}/{key}", filesystem=self._files()).to_pylist()

    def object(self, key: str) -> Any:
        """JSON of S3."""
        with self._files().open_input_stream(f"{self.bucket}/{key}") as stream:
            return json.loads(stream.read())

    def _files(self) -> S3FileSystem:
        return S3FileSystem(
            access_key=self.s3["access_key_id"], secret_key=self.s3["secret_access_key"], region=self.s3["region"],
            endpoint_override=self.s3["endpoint"],
        )  # fmt: skip


class Example(NamedTuple):
    """A workflow, its tables, and what must have become of it; `written` are comments that must be kept."""

    workflow: str
    check: Callable[[World, Any], None]
    prepare: str = ""


def check_chunks_of_an_answer(world: World, data: Any) -> None:
    """7.1"""
    assert data["count"] == 250
    assert data["chunks"] == 3
    stored = world.rows("SELECT chunk_index, count(*), min((data->>'id')::int) FROM api_cache GROUP BY 1 ORDER BY 1")
    assert stored == [(0, 100, 0), (1, 100, 100), (2, 50, 200)]
    assert [len(world.parquet(f"backups/chunk_{index}.parquet")) for index in (0, 1, 2)] == [100, 100, 50]
    assert world.parquet("backups/chunk_2.parquet")[0] == {"id": 200, "name": "item 200"}


def check_chunks_in_a_loop(world: World, data: Any) -> None:
    """7.2"""
    assert data == {"users_processed": 2, "total_activities": 1800}
    assert world.lake("SELECT count(*), min(user_id), max(user_id) FROM user_activity_1") == [(1200, 1, 1)]
    assert world.lake("SELECT count(*), sum(n) FROM user_activity_2") == [(600, 180300)]


def check_transfer(world: World, data: Any) -> None:
    """7.3"""
    assert {key: data[key] for key in ("rows", "count", "chunks")} == {"rows": 2500, "count": 2500, "chunks": 3}
    copied = world.rows("SELECT count(*), min(name), max(created)::text FROM replicated_table")
    assert copied == [(2500, "name 1", "2024-03-01")]
    assert world.lake("SELECT count(*), sum(id) FROM analytics.analytics.facts") == [(2500, 3126250)]
    assert [len(world.parquet(f"archives/chunk_{index}.parquet")) for index in (0, 1, 2)] == [1000, 1000, 500]


def check_parallel_loop(world: World, data: Any) -> None:
    """7.4"""
    assert data == {"users": 3, "asked": [1, 2, 3]}
    stored = world.rows("SELECT user_id, enrichment_data->'data'->'got'->>'user_id' FROM enriched_users ORDER BY 1")
    assert stored == [(1, "1"), (2, "2"), (3, "3")]


def check_join(world: World, data: Any) -> None:
    """8.1, first generation"""
    assert data == {"id": 2, "score": 42}
    assert world.rows("SELECT id, score FROM public.user_profiles") == [(2, 42)]


def check_reduce(world: World, data: Any) -> None:
    """8.2, first generation"""
    assert data == {"total": 0.6}
    stored = world.rows("SELECT split_part(id, ':', 2), score::float8 FROM public.user_profile_results ORDER BY 1")
    assert stored == [("ada", 0.1), ("bob", 0.2), ("eve", 0.3)]


def check_loop_and_chunks(world: World, data: Any) -> None:
    """8.2"""
    assert [each["count"] for each in data] == [250, 250, 250]
    assert world.rows("SELECT item, count(*) FROM copies GROUP BY 1 ORDER BY 1") == [(1, 250), (2, 250), (3, 250)]


def check_scope(world: World, data: Any) -> None:
    """8.3 and 6: a column of its own, a body of its own, side by side"""
    assert data == {"id": 2, "name": "user 2"}
    assert world.rows("SELECT raw->>'name', status FROM responses") == [("user 2", 200)]
    assert world.object("raw/users.json")["body"] == {"id": 2, "name": "user 2"}


def check_v1(world: World, data: Any) -> None:
    """9.2: the playbook of v1"""
    assert data == {"name": "user 7"}
    assert world.rows("SELECT name FROM user_cache") == [("user 7",)]


EXAMPLES = {
    "7.1": Example(
        """\
workflow:
  # chunks of an answer
  - step: fetch_and_store
    result: fetch_summary          # Step-level result for summary
    tool:
      kind: http
      result: api_data             # Tool-level result for sinks
      url: "{{ context.workload.api_url }}/large_dataset"
      method: GET
      chunk:
        size: 100
        path: "data.items"         # Extract array from response
      sink:
        - kind: postgres
          auth: "{{ context.workload.pg_auth }}"
          table: api_cache
          mode: append
          args:
            data: "{{ api_data.items }}"
            chunk_index: "{{ chunk.index }}"
        - kind: s3
          auth: "{{ context.workload.s3_auth }}"
          path: "backups/chunk_{{ chunk.index }}.parquet"
          format: parquet
        - kind: s3
          auth: "{{ context.workload.s3_auth }}"
          path: "s3://no-such-bucket/x.parquet"
          on_error: warn
""",
        check_chunks_of_an_answer,
    ),
    "7.2": Example(
        """\
  users: [{id: 1}, {id: 2}]
workflow:
  - step: process_users
    result: user_results           # Step-level: array of all user results
    loop:
      collection: "{{ context.workload.users }}"
      element: user
      mode: sequential
    tool:
      kind: postgres
      result: activity_data        # Tool-level: current user's activity
      auth: "{{ context.workload.pg_auth }}"
      query: "SELECT * FROM activity_logs WHERE user_id = {{ user.id }} LIMIT 10000"
      chunk:
        size: 500                  # Process 500 rows at a time
        mode: stream
      sink:
        - kind: duckdb
          auth: "{{ context.workload.duckdb }}"
          table: user_activity_{{ user.id }}
          mode: replace
          args:
            activities: "{{ activity_data.rows }}"
    next:
      - step: summary
  - step: summary
    tool:
      kind: python
      code: |
        def main(context):
          # Access step-level result from previous step
          user_results = context.get('user_results', [])
          return {
            "users_processed": len(user_results),
            "total_activities": sum(r.get('count', 0) for r in user_results)
          }
      args:
        user_results: "{{ context.user_results }}"
""",
        check_chunks_in_a_loop,
        "CREATE TABLE activity_logs AS SELECT 1 + (n > 1200)::int AS user_id, CASE WHEN n > 1200 THEN n - 1200 ELSE n END"
        " AS n FROM generate_series(1, 1800) AS g(n)",
    ),
    "7.3": Example(
        """\
workflow:
  - step: bulk_transfer
    result: transfer_summary       # Step-level result
    tool:
      kind: transfer
      result: transfer_data        # Tool-level result for sinks
      source:
        kind: postgres
        auth: "{{ context.workload.pg_auth }}"
        query: "SELECT * FROM large_table WHERE created_at > '2024-01-01'"
        chunk:
          size: 1000               # Fetch 1000 rows at a time
      sink:
        - kind: postgres
          auth: "{{ context.workload.pg_auth }}"
          table: replicated_table
          mode: append
          mapping:
            id: "{{ transfer_data.id }}"
            name: "{{ transfer_data.full_name }}"
            created: "{{ transfer_data.created_at }}"
        - kind: duckdb
          file: "{{ context.workload.duckdb }}"
          table: analytics.facts
          mode: append
          args:
            rows: "{{ transfer_data.rows }}"
        - kind: s3
          auth: "{{ context.workload.s3_auth }}"
          path: "archives/chunk_{{ chunk.index }}.parquet"
          format: parquet
""",
        check_transfer,
        "CREATE TABLE large_table AS SELECT n AS id, 'name ' || n AS full_name, date '2024-03-01' AS created_at "
        "FROM generate_series(1, 2500) AS g(n)",
    ),
    "7.4": Example(
        """\
workflow:
  - step: fetch_all_users
    result: users                  # Step-level result
    tool:
      kind: http
      url: "{{ context.workload.api_url }}/users"
    next: [{step: enrich_users}]
  - step: enrich_users
    result: enriched_users         # Step-level: array of all enriched users
    loop:
      collection: "{{ context.users.data }}"
      element: user
      mode: parallel               # Process all users concurrently
    tool:
      kind: http
      result: enrichment           # Tool-level result for sink
      url: "{{ context.workload.api_url }}/enrich"
      method: POST
      body:
        user_id: "{{ user.id }}"
        fields: ["credit_score", "preferences"]
      sink:
        - kind: postgres
          auth: "{{ context.workload.pg_auth }}"
          table: enriched_users
          mode: upsert
          key: user_id
          args:
            user_id: "{{ user.id }}"
            enrichment_data: "{{ enrichment }}"
    next:
      - step: analyze_enriched
  - step: analyze_enriched
    when: "{{ context.enriched_users is defined }}"
    tool:
      kind: python
      code: |
        def main(context):
          enriched_users = context.get('enriched_users', [])
          return {"users": len(enriched_users), "asked": [each["got"]["user_id"] for each in enriched_users]}
      args:
        enriched_users: "{{ context.enriched_users }}"
""",
        check_parallel_loop,
    ),
    "8.1 of the first generation": Example(
        """\
  user_id: 2
workflow:
  - step: start
    next:
      - step: fetch_user
      - step: score_user
  - step: fetch_user
    tool:
      kind: http
      spec:
        method: GET
        endpoint: "{{ api_url }}/users/{{ workload.user_id }}"
      result:
        as: user_raw
    next:
      - step: join
  - step: score_user
    tool:
      kind: playbook
      spec:
        path: scorer.yaml
      args:
        user: "{{ user_raw }}"
      result:
        as: user_score
    next:
      - step: join
  - step: join
    when: "{{ done('fetch_user') and ok('score_user') }}"
    tool:
      kind: python
      spec:
        code: |
          def main(context, results):
              u = context["user_raw"]
              s = context["user_score"]
              return {
                  "id": u["id"],
                  "score": s["value"]
              }
      result:
        as: user_profile
        sink:
          - postgres:
              auth: "{{ workload.pg_auth }}"
              table: public.user_profiles
              mode: upsert
              key: id
              args:
                id: "{{ user_profile.id }}"
                score: "{{ user_profile.score }}"
""",
        check_join,
    ),
    "8.2 of the first generation": Example(
        """\
  users: [{name: ada, rating: 1}, {name: bob, rating: 2}, {name: eve, rating: 3}]
workbook:
  summarize_scores:
    tool:
      kind: python
      args: {scores: "{{ input.scores }}"}
      code: |
        def main(scores):
            return {"total": round(sum(each["score"] for each in scores), 1)}
workflow:
  - step: proc_users
    desc: "Loop over users as 'user'"
    loop:
      collection: "{{ workload.users }}"
      element: user
      mode: parallel
    tool:
      kind: playbook
      spec:
        path: scorer.yaml
      args:
        user_data: "{{ user }}"
      result:
        pick: "{{ {'name': user.name, 'score': this.profile_score or 0.0} }}"
        as: last_score
        collect:
          into: all_scores
          mode: list
        sink:
          - postgres:
              auth: "{{ workload.pg_auth }}"
              table: public.user_profile_results
              mode: upsert
              key: id
              args:
                id: "{{ execution_id }}:{{ out.name }}"
                score: "{{ out.score }}"
    next:
      - step: summarize
  - step: summarize
    when: "{{ loop_done('proc_users') }}"
    tool:
      kind: workbook
      spec:
        name: summarize_scores
      args:
        scores: "{{ all_scores }}"
      result:
        as: scores_summary
""",
        check_reduce,
    ),
    "8.2": Example(
        """\
workflow:
  - step: each
    loop:
      collection: [1, 2, 3]
      element: item
    tool:
      kind: postgres
      auth: "{{ context.workload.pg_auth }}"
      query: "SELECT n, {{ item }} AS item FROM generate_series(1, 250) AS g(n)"
      chunk:
        size: 100
      sink:
        - kind: postgres
          auth: "{{ context.workload.pg_auth }}"
          table: copies
""",
        check_loop_and_chunks,
    ),
    "8.3": Example(
        """\
workflow:
  - step: fetch_and_process
    result: final_data             # Step-level: accessible in next steps
    tool:
      kind: http
      result: http_resp            # Tool-level: accessible in sinks only
      url: "{{ context.workload.api_url }}/users/2"
      sink:
        - kind: postgres
          auth: "{{ context.workload.pg_auth }}"
          table: responses
          args:
            raw: "{{ http_resp.body }}"  # Tool-level result
            status: "{{ http_resp.status_code }}"
        - kind: s3
          auth: "{{ context.workload.s3_auth }}"
          path: raw/users.json
          body: "{{ http_resp }}"   # Tool-level result
        - kind: http
          url: "{{ context.workload.api_url }}/hook"
          body: "{{ http_resp.data }}"
        - kind: http
          url: "http://127.0.0.1:1/nobody-listens"
          body: "{{ http_resp.data }}"
          on_error: warn
    next: [{step: use_data}]
  - step: use_data
    tool:
      kind: python
      args:
        data: "{{ context.final_data }}"  # Step-level result from previous step
      code: "result = data"
""",
        check_scope,
    ),
    "9.2": Example(
        """\
  user_id: 7
workbook:
  my_task:
    kind: python
    args: {n: "{{ input.user_id }}"}
    code: "result = {'name': f'user {n}'}"
workflow:
  - step: fetch_data
    type: workbook
    name: my_task
    data:
      user_id: "{{ workload.user_id }}"
    bind:
      user_data:
        path: "result.data"
    save:
      storage: postgres
      auth: "{{ workload.pg_auth }}"
      table: user_cache
    next: [{step: after}]
  - step: after
    tool:
      kind: python
      args: {data: "{{ context.user_data }}"}
      code: "result = data"
""",
        check_v1,
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_document_example_and_its_migrated_form_have_the_documented_result(
    name: str, postgres: dict[str, Any], s3: dict[str, Any], tmp_path: Path
):
    example = EXAMPLES[name]
    (tmp_path / "scorer.yaml").write_text(CHILD)
    before = _run(HEAD + example.workflow, example, postgres, s3, tmp_path / "before")
    made = migrate(HEAD + example.workflow, tools.specs())
    assert made.notes == ()
    assert "sink:" not in made.text
    for line in example.workflow.splitlines():
        _, mark, comment = line.partition("  # ")
        assert not mark or comment in made.text
    after = _run(made.text, example, postgres, s3, tmp_path / "after")
    assert after == before


def _run(text: str, example: Example, postgres: dict[str, Any], s3: dict[str, Any], folder: Path) -> Any:
    folder.mkdir()
    with services.fresh_database(postgres) as dsn, services.fresh_bucket(s3) as bucket, serving() as api:
        called = {dsn: "PG", bucket: "BUCKET", api: "API", str(folder): "HOME"}
        text = text.replace("value: S3", "value: " + json.dumps({**s3, "bucket": bucket}))
        for place, word in called.items():
            if word != "BUCKET":
                text = text.replace(f" {word}", f" {place}")
        if example.prepare:
            with psycopg.connect(dsn) as connection:
                connection.execute(example.prepare)
        (folder / "example.yaml").write_text(text)

        async def run() -> Any:
            async with await open_local(home=folder / "home") as engine:
                result = await engine.run(folder / "example.yaml", timeout=60)
                return result, await engine.orchestrator.events(result.execution_id)

        (folder / "scorer.yaml").write_text(CHILD)
        result, events = asyncio.run(run())
        assert result.status == "success", result.error
        data = result.output["data"]
        example.check(World(dsn, folder / "analytics.duckdb", s3, bucket), data)
        seen = re.sub(r'"key":"[0-9a-f]{32}"', "KEY", msgspec.json.encode([data, result.ctx]).decode())
        for place, word in called.items():
            seen = seen.replace(place, word)
        return seen, events_by_run(events, called)
