"""What the log has of the inputs of tasks."""

from __future__ import annotations

import msgspec
from work_link import Bench

from noetl.core.model.events import TaskDone
from noetl.core.model.outcome import error, ok
from noetl.worker.host import HostServices
from noetl.worker.runner import Runner
from noetl.worker.task_inputs import MAX_INLINE, MAX_STORED, OMITTED

TEXT = """
workload: {name: Ada, api_token: tok-1234567, size: 10}
workflow:
  - step: s
    tool:
      - name: a
        kind: act
        input: {who: "{{ workload.name }}", fixed: 5, token: "{{ workload.api_token }}", text: "{{ 'x' * workload.size }}"}
"""


async def act(call):
    return ok(None)


def done(bench: Bench, size: int = 10) -> list[TaskDone]:
    workload = {"name": "Ada", "api_token": "tok-1234567", "size": size}
    return [event for event in bench.run(workload=workload) if isinstance(event, TaskDone)]


def bench_of(text: str = TEXT, **tools) -> Bench:
    return Bench(text, **{"act": act, **tools})


def test_what_templates_gave_is_recorded_and_names_of_secrets_are_masked():
    (event,) = done(bench_of())
    assert event.input == {"who": "Ada", "token": "***", "text": "x" * 10}
    assert event.input_ref is None


def test_every_attempt_has_its_input():
    text = """
workflow:
  - step: s
    tool:
      - name: a
        kind: act
        input: {n: "{{ _attempt }}"}
        retry: {attempts: 3}
"""

    async def failing(call):
        return error("timeout", "slow")

    text = text.replace(
        "retry: {attempts: 3}",
        "spec: {policy: {rules: [{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 3}}]}}",
    )
    assert [event.input for event in done(bench_of(text, act=failing))] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_large_input_is_stored_by_reference():
    bench = bench_of()
    (event,) = done(bench, MAX_INLINE)
    assert event.input is None and event.input_ref is not None
    (stored,) = bench.results.kept.values()
    assert msgspec.json.decode(stored) == {"who": "Ada", "token": "***", "text": "x" * MAX_INLINE}


def test_of_a_very_large_input_only_the_shape_is_recorded():
    bench = bench_of()
    (event,) = done(bench, MAX_STORED)
    assert event.input == {
        "who": "Ada",
        "token": "***",
        "text": {OMITTED: f"text of {MAX_STORED:,} characters, {MAX_STORED + 2:,} bytes"},
    }
    assert not bench.results.kept


def test_recording_can_be_switched_off_and_costs_nothing_without_templates():
    bench = bench_of()
    services = HostServices(bench.results, record_inputs=False)
    bench.pool.runner = Runner(bench.link, services, specs=bench.runner._specs, load=bench.load, clock=bench.clock)
    (event,) = done(bench)
    assert event.input is None
    (event,) = done(bench_of("workflow: [{step: s, tool: [{name: a, kind: act, input: {fixed: 5}}]}]"))
    assert event.input is None
