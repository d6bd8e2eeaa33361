"""Result schemas from end to end: tasks, steps, iterations, registered schemas, large results."""

from __future__ import annotations

import asyncio
import time

import pytest

from noetl.core.model.schemas.json_schema import compile_schema
from noetl.data.row_stream import rows_of
from noetl.errors import Conflict, NotFound, RequestRefused
from noetl.runtime.clock import RealClock
from noetl.server.orchestrator.schema_registry import SchemaRegistry
from noetl.storage.factory import open_stores, open_triggers

ORDER = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "amount": {"type": "number"}},
}


def test_an_output_that_does_not_fit_is_an_error_with_every_failing_path(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          - name: t
            kind: python
            code: "result = {'id': 'x', 'rows': [{'n': 1}, {'n': 'two'}, {}]}"
            output:
              schema:
                type: object
                required: [id, name]
                properties:
                  id: {type: integer}
                  rows: {type: array, items: {type: object, required: [n], properties: {n: {type: integer}}}}
    """)
    assert (ran.status, ran.error["kind"]) == ("failed", "schema")
    paths = {failure["path"] for failure in ran.error["details"]["failures"]}
    assert paths == {"", "id", "rows.1.n", "rows.2"}
    assert "and 3 more" in ran.error["message"]


def test_rules_can_retry_an_output_that_does_not_fit(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          - name: t
            kind: python
            input: {n: "{{ _attempt }}"}
            code: "result = n if n > 2 else 'no'"
            spec:
              validation: {output: {type: integer}}
              policy: {rules: [{when: "{{ output.error.kind == 'schema' }}", then: {do: retry, attempts: 5}}]}
    """)
    assert ran.data == 3


def test_an_input_that_does_not_fit_does_not_run_the_tool(play):
    ran = play("""
    workload: {n: two}
    workflow:
      - step: start
        tool:
          - name: t
            kind: python
            input: {n: "{{ workload.n }}"}
            code: "raise SystemError('it ran')"
            spec: {validation: {input: {type: object, additionalProperties: false, properties: {n: {type: integer}}}}}
    """)
    assert (ran.error["kind"], ran.error["details"]["failures"][0]["path"]) == ("schema", "n")


def test_the_schemas_of_a_step_apply_to_its_input_and_output(play):
    text = """
    workload: {n: 1, out: 5}
    workflow:
      - step: start
        input: {n: "{{ workload.n }}"}
        spec: {validation: {input: {type: object, properties: {n: {type: integer}}}, output: {type: integer}}}
        tool: {kind: python, input: {out: "{{ workload.out }}"}, code: "result = out"}
        next: {arcs: [{step: end}, {step: wrong, when: "{{ event.name == 'step.failed' }}"}]}
      - {step: end, tool: {kind: python, code: "result = 'fine'"}}
      - {step: wrong, tool: {kind: python, input: {k: "{{ start.error.kind }}"}, code: "result = k"}}
    """
    assert play(text).data == "fine"
    assert play(text, {"n": "x"}).data == "schema"
    assert play(text, {"out": "x"}).data == "schema"


def test_of_a_loop_step_each_iteration_is_checked(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: [1, two, 3], iterator: n}
        input: {n: "{{ iter.n }}"}
        spec:
          validation: {input: {properties: {n: {type: integer}}}}
          policy: {failure: {mode: best_effort}}
        tool: {kind: python, input: {n: "{{ input.n }}"}, code: "result = n"}
    """)
    assert ran.data == [1, None, 3]


def test_a_registered_schema_is_found_by_name_and_version(stage, play):
    registry = stage.orchestrator.schemas
    stage.do(registry.register("shop/orders", ORDER))
    changed = {**ORDER, "required": ["id", "amount"]}
    with pytest.raises(Conflict, match="amount: is required now"):
        stage.do(registry.register("shop/orders", changed))
    assert stage.do(registry.register("shop/orders", changed, compatible="none")).version == 2
    text = """
    workflow:
      - step: start
        tool: {kind: python, code: "result = {'id': 1}", output: {schema: %s, store: {kind: disk}}}
    """
    ran = play(text % "shop/orders/v1")
    assert ran.status == "success"
    (done,) = ran.of("task.done")
    assert done.outcome.meta["schema"]["version"] == 1
    assert done.outcome.ref.meta.schema["name"] == "shop/orders"
    assert play(text % "shop/orders").error["kind"] == "schema"  # the newest version
    assert play(text % "shop/nothing").error["kind"] == "not_found"


@pytest.mark.parametrize("back_end", ["memory", "sqlite", "postgres"])
def test_the_registry_on_every_back_end(back_end, tmp_path, request):
    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/r.db"}.get(back_end)

    async def scenario():
        events, _ = open_stores(url or request.getfixturevalue("database"))
        try:
            registry = SchemaRegistry(open_triggers(events), RealClock())
            first = await registry.register("a", ORDER, by="ada")
            assert (first.version, first.registered_by) == (1, "ada")
            assert (await registry.register("a", dict(reversed(ORDER.items())))).version == 1
            wider = {**ORDER, "properties": {**ORDER["properties"], "note": {"type": "string"}}}
            assert (await registry.register("a", wider)).version == 2
            await registry.register("b", {"type": "array"})
            assert [(each.name, each.version) for each in await registry.list()] == [("a", 2), ("b", 1)]
            assert [each.name for each in await registry.list(after="a")] == ["b"]
            assert (await registry.find("a/v1")).schema == ORDER
            assert (await registry.find("a")).schema == wider
            assert [each.version for each in await registry.versions("a")] == [2, 1]
            many = [registry.register("c", {"const": n}, compatible="none") for n in range(5)]
            assert {each.version for each in await asyncio.gather(*many)} == {1, 2, 3, 4, 5}
            for wrong in ("a/v3", "none"):
                with pytest.raises(NotFound):
                    await registry.find(wrong)
            for name, schema in (("a/v3", ORDER), ("x y", ORDER), ("d", {"type": "nope"}), ("d", [1])):
                with pytest.raises(RequestRefused):
                    await registry.register(name, schema)
            with pytest.raises(RequestRefused, match=r"a document of kind Playbook .*`noetl register`"):
                await registry.register("d", {"apiVersion": "noetl.io/v2", "kind": "Playbook", "workflow": []})
        finally:
            await events.close()

    asyncio.run(scenario())


def test_a_stored_result_is_checked_row_by_row(play, tmp_path):
    ran = play(
        """
    workload: {file: ''}
    workflow:
      - step: start
        tool:
          - name: t
            kind: duckdb
            file: "{{ workload.file }}"
            command: "SELECT i AS id, CASE WHEN i = 299999 THEN NULL ELSE i END AS amount FROM range(300000) t(i)"
            spec: {result: {format: parquet}}
            output: {schema: {type: array, items: {type: object, properties: {amount: {type: integer}}}}}
    """,
        {"file": str(tmp_path / "d.db")},
    )
    assert ran.error["kind"] == "schema", ran.error
    assert [failure["path"] for failure in ran.error["details"]["failures"]] == ["299999.amount"]


def test_a_hundred_thousand_small_objects_are_checked_in_a_second():
    validator = compile_schema(ORDER)
    rows = [{"id": number, "amount": 1.5} for number in range(100_000)]
    began = time.perf_counter()
    assert all(validator.is_valid(row) for row in rows)
    assert time.perf_counter() - began < 1


def test_rows_of_a_stored_payload_are_read_in_batches(stage):
    results = stage.orchestrator.results

    async def scenario():
        async def chunks():
            yield b"[" + b",".join(b'{"n":%d}' % number for number in range(25_000)) + b"]"

        reference = await results.put("1/x/y", chunks(), content_type="application/json")
        return [row["n"] async for row in rows_of(reference, results.open)]

    assert stage.do(scenario()) == list(range(25_000))


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [("date", "2026-11-17", "2026-13-45"), ("email", "ada@example.org", "ada"), ("uuid", "0" * 8 + "-0000-4000-8000-" + "0" * 12, "x"),
     ("date-time", "2026-11-17T05:00:00Z", "yesterday"), ("ipv4", "127.0.0.1", "300.1.1.1")],
)  # fmt: skip
def test_formats_are_checked(play, format, good, bad):
    text = f"""
    workload: {{value: ""}}
    workflow:
      - step: a
        tool:
          kind: python
          input: {{value: "{{{{ workload.value }}}}"}}
          code: "result = {{'value': value}}"
          spec: {{validation: {{output: {{properties: {{value: {{type: string, format: {format}}}}}}}}}}}
    """
    assert play(text, {"value": good}).status == "success"
    refused = play(text, {"value": bad})
    assert (refused.status, refused.error["kind"]) == ("failed", "schema")
    assert refused.error["details"]["failures"][0]["path"] == "value"
