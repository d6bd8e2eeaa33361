from __future__ import annotations

import asyncio

import msgspec
import pytest
from work_link import Bench, MemoryResults

from noetl.core.model.events import IterationDone, StepDone, TaskDone
from noetl.core.model.outcome import Outcome, ok
from noetl.core.model.playbook import OutputPolicy
from noetl.core.model.position import Item, Position
from noetl.data.files import formats, table_files
from noetl.errors import PayloadUnavailable, StoreUnavailable
from noetl.storage.results import ResultStores, open_store
from noetl.worker import collections as stored_collections
from noetl.worker.collections import StoredCollections
from noetl.worker.payloads import Payloads

BIG = {"rows": [{"id": n, "text": "x" * 100} for n in range(1000)], "count": 1000}

READER = """
workflow:
  - step: s
    tool:
      - {name: fetch, kind: act}
      - {name: use, kind: act, input: {n: "{{ fetch.rows | length }}", first: "{{ output.data.rows[0].id }}"}}
      - {name: last, kind: noop, input: {id: "{{ fetch.data.rows[1].id }}"}}
"""


def answering(**answers):
    async def act(call):
        return ok(answers.get(call.task, call.input))

    return act


def test_a_large_outcome_is_stored_first_and_stays_data_in_its_own_pipeline():
    bench = Bench(READER, act=answering(fetch=BIG))
    events = bench.run()
    fetch, use, last = [event for event in events if isinstance(event, TaskDone)]
    assert fetch.outcome.data is None and fetch.outcome.ref.meta.rows == 1000
    assert bench.results.data(fetch.outcome.ref) == BIG
    assert use.outcome.data == {"n": 1000, "first": 0} and last.outcome.data == {"id": 1}
    assert bench.results.reads == 0
    assert all(len(msgspec.json.encode(event)) < 70_000 for event in events)


def test_a_large_steps_output_carries_the_parts_that_server_side_templates_read():
    text = """
workflow:
  - step: s
    tool: [{name: fetch, kind: act}]
    next: {arcs: [{step: e, when: "{{ output.data.count > 1 }}"}]}
  - {step: e, tool: [{name: x, kind: noop}]}
"""
    output = Bench(text, act=answering(fetch=BIG)).run()[-1].output
    assert output.ref is not None and output.data is None and output.extracts["data.count"] == 1000


def test_another_worker_reads_a_stored_task_result_when_it_resumes():
    bench = Bench(READER, act=answering(fetch=BIG))
    events = bench.run()
    position = next(event.position for event in events if isinstance(event, TaskDone) and event.task == "use")
    again = Bench(READER, act=answering())
    again.results = bench.results
    again.runner.payloads = Payloads(bench.results)
    resumed = again.run(position=msgspec.json.decode(msgspec.json.encode(position), type=Position))
    assert resumed[-1].output.data == {"id": 1} and bench.results.reads == 1


def test_output_ref_is_a_reference_even_for_small_data():
    text = "workflow: [{step: s, tool: [{name: a, kind: act, set: {ctx.where_ref: '{{ output.ref }}'}}]}]"
    bench = Bench(text, act=answering(a={"n": 1}))
    events = bench.run()
    reference = events[1].patch["ctx"]["where_ref"]
    assert reference["type"] == "blob"
    assert events[1].outcome.data == {"n": 1}  # small data stays inline
    assert isinstance(events[-1], StepDone)


def test_a_result_is_hydrated_up_to_the_limit():
    text = """
executor: {spec: {policy: {limits: {max_hydrate_bytes: LIMIT}}}}
workflow:
  - {step: f, tool: [{name: x, kind: noop}], next: {arcs: [{step: s}]}}
  - {step: s, tool: [{name: a, kind: noop, input: {n: "{{ f.rows | length }}"}}]}
"""

    def run(limit):
        bench = Bench(text.replace("LIMIT", str(limit)))

        async def once():
            reference = await bench.runner.payloads.put_value("f", BIG)
            return await bench.once(results={"f": Outcome(status="ok", ref=reference)})

        return asyncio.run(once())[-1].output

    assert run(10_000_000).data == {"n": 1000}
    refused = run(1000)
    assert refused.error.kind == "limit" and "resolve" in refused.error.message


def test_a_missing_stored_result_is_an_error_of_the_task_that_reads_it():
    text = """
workflow:
  - {step: f, tool: [{name: x, kind: noop}], next: {arcs: [{step: s}]}}
  - {step: s, tool: [{name: a, kind: noop, input: {n: "{{ f.rows | length }}"}}]}
"""
    bench = Bench(text)

    async def once():
        reference = await bench.runner.payloads.put_value("f", BIG)
        await bench.results.delete(reference)
        return await bench.once(results={"f": Outcome(status="ok", ref=reference)})

    output = asyncio.run(once())[-1].output
    assert output.error.kind == "ref.unresolved"


@pytest.mark.parametrize(
    ("content_type", "data"),
    [("text/csv", b'a,b\n1,"x\n'), ("application/json", b"[1, 2"), ("application/x-ndjson", b'{"a": 1}\n{"a"\n')],
)
def test_a_stored_result_that_does_not_match_its_type_is_an_error_of_the_task_that_reads_it(content_type, data):
    text = """
workflow:
  - {step: f, tool: [{name: x, kind: noop}], next: {arcs: [{step: s}]}}
  - {step: s, tool: [{name: a, kind: noop, input: {n: "{{ f | length }}"}}]}
"""
    bench = Bench(text)

    async def content():
        yield data

    async def once():
        reference = await bench.results.put("f", content(), content_type=content_type)
        return await bench.once(results={"f": Outcome(status="ok", ref=reference)})

    output = asyncio.run(once())[-1].output
    assert output.error.kind == "ref.corrupt" and f"not valid {content_type}" in output.error.message


def test_an_unavailable_store_makes_a_large_outcome_an_error():
    bench = Bench(READER, act=answering(fetch=BIG))
    bench.results.fail = StoreUnavailable("disk full", kind="storage.quota")
    output = bench.run()[-1].output
    assert output.error.kind == "storage.quota" and "disk full" in output.error.message


def test_an_output_block_selects_the_store_and_the_inline_parts():
    text = "workflow: [{step: s, tool: [{name: a, kind: act, output: {store: {kind: blob, ttl: 1h}, select: [n]}}]}]"
    bench = Bench(text, act=answering(a={"n": 1, "m": "x" * 100_000}))
    events = bench.run()
    assert events[1].outcome.ref.meta.ttl == "1h" and events[1].outcome.data is None
    assert events[1].outcome.extracts["n"] == 1


PAGES = """
workflow:
  - step: s
    loop: {in: "{{ workload.x }}", iterator: item}
    tool:
      - {name: fetch, kind: act, set: {iter.rows: "{{ output.data.rows }}", iter.page: 1}}
      - {name: keep, kind: act, input: {n: "{{ iter.rows | length }}"}}
      - {name: last, kind: act, input: {n: "{{ iter.rows | length }}"}}
"""


def test_large_private_state_is_offloaded_once_and_restored_by_the_next_worker():
    bench = Bench(PAGES, act=answering(fetch=BIG))
    items = (Item(name="item", index=0, count=1, value=1),)
    events = bench.run(run="1:s:1/0", path=(0,), items=items)
    assert isinstance(events[-1], IterationDone)
    assert all(len(msgspec.json.encode(event)) < 70_000 for event in events)
    assert len(bench.results.puts) == 2  # the outcome, and iter.rows once
    position = next(event.position for event in events if isinstance(event, TaskDone) and event.task == "keep")
    again = Bench(PAGES, act=answering())
    again.runner.payloads = Payloads(bench.results)
    wire = msgspec.json.decode(msgspec.json.encode(position), type=Position)
    resumed = again.run(run="1:s:1/0", path=(0,), items=items, position=wire)
    assert resumed[-1].output.data == {"n": 1000}


def test_helpers_and_error_texts_are_truncated():
    async def act(call):
        return Outcome(status="ok", data=1, helpers={"act": {"code": "x" * 100_000}})

    events = Bench("workflow: [{step: s, tool: [{name: a, kind: act}]}]", act=act).run()
    assert events[-1].output.data == 1 and events[-1].output.helpers == {"act": {"code": None}}


@pytest.mark.parametrize("format", ["parquet", "arrow", "csv", "jsonl"])
def test_a_stored_table_is_read_like_the_result_of_an_sql_tool(format):
    async def act(call):
        async def chunks():
            yield table_files.encode_rows([{"id": 1, "t": "s3cretpw"}, {"id": 2, "t": "b"}], format)

        await call.host.credential("db")
        reference = await call.host.put_result(chunks(), content_type=formats.CONTENT_TYPES[format], rows=2)
        return Outcome(status="ok", ref=reference)

    text = """
workflow:
  - step: s
    tool:
      - {name: q, kind: act}
      - name: u
        kind: noop
        input: {ids: "{{ q.rows | map(attribute='id') | list }}", t: "{{ q.rows[0].t }}", c: "{{ q.columns }}"}
"""
    bench = Bench(text, act=act)
    bench.link.keychain = {"db": "s3cretpw"}
    data = bench.run()[-1].output.data
    assert [int(each) for each in data["ids"]] == [1, 2] and data["c"] == ["id", "t"] and "s3cret" not in data["t"]


# ── stored collections ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("whole", [True, False])
def test_elements_of_a_list_are_read_by_index_forwards_and_back(whole, monkeypatch):
    items = [{"n": n, "t": f'a,"]}}{n}\\'} if n % 3 else [n, ["x,y", None]] for n in range(3000)]
    if not whole:
        monkeypatch.setattr(stored_collections, "MAX_SMALL", 10)
        monkeypatch.setattr(stored_collections, "BLOCK", 1000)

    async def check():
        results = MemoryResults()
        reference = await Payloads(results).put_value("c", items)
        stored = StoredCollections(results)
        for index in (0, 1, 2, 500, 499, 2999, 0, 1500, 256, 255, 2998):
            assert await stored.element(reference, index) == items[index]
        assert await asyncio.gather(*(stored.element(reference, n) for n in range(100))) == items[:100]
        with pytest.raises(PayloadUnavailable):
            await stored.element(reference, 3000)

    asyncio.run(check())


def test_collections_that_were_read_leave_no_locks():
    async def check():
        results = MemoryResults()
        payloads, stored = Payloads(results), StoredCollections(results)
        for number in range(50):
            assert await stored.element(await payloads.put_value("f", [number]), 0) == number
        assert len(stored._locks) <= 1

    asyncio.run(check())


def test_one_element_larger_than_a_block_is_read_whole(monkeypatch):
    monkeypatch.setattr(stored_collections, "MAX_SMALL", 10)
    monkeypatch.setattr(stored_collections, "BLOCK", 64)
    items = ["short", "y" * 1000, {"z": ["w" * 300]}, 7]

    async def check():
        results = MemoryResults()
        reference = await Payloads(results).put_value("c", items)
        stored = StoredCollections(results)
        assert [await stored.element(reference, n) for n in range(4)] == items

    asyncio.run(check())


def test_a_bucket_that_cannot_be_used_falls_back_to_the_default_store(s3, bucket, tmp_path, caplog):
    async def scenario():
        results = ResultStores([open_store(f"blob://{tmp_path}"), open_store(f"s3://{bucket}/a", fields=s3)])
        payloads = Payloads(results)
        policy = OutputPolicy(store={"kind": "s3", "bucket": f"{bucket}-missing"})
        outcome, _ = await payloads.pack(ok({"t": "x" * 100_000}), name="1/a/1", limit=1000, policy=policy)
        await results.close()
        return outcome

    assert asyncio.run(scenario()).ref.type == "blob"
    assert "the default store is used" in caplog.text
