"""Class "large values": a large value in any place of a playbook is no large event, whether it is accepted or refused."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import yaml

from noetl.embedded import open_local
from noetl.server.orchestrator.submissions import Submission

BIG = "{{ 'a' * 3000000 }}"
MOST = 400_000  # bytes of all events of an execution: the message of an error is in up to four of them
NOOP = [{"name": "n", "kind": "noop"}]


def task(kind: str = "noop", **fields):
    return {"workflow": [{"step": "start", "tool": [{"name": "a", "kind": kind, **fields}]}]}


def step(**fields):
    return {"workflow": [{"step": "start", "tool": NOOP, **fields}]}


def arc(**fields):
    arcs = {"arcs": [{"step": "end", **fields}]}
    return {"workflow": [{"step": "start", "tool": NOOP, "next": arcs}, {"step": "end", "tool": NOOP}]}


def rule(**then):
    return task(spec={"policy": {"rules": [{"when": "{{ true }}", "then": then}]}})


PLACES = {
    "dedupe": arc(spec={"dedupe": BIG}),
    "a list as dedupe": arc(spec={"dedupe": "{{ range(90000) | list }}"}),
    "partition": arc(spec={"partition": BIG}),
    "priority": arc(spec={"priority": BIG}),
    "priority, a list": arc(spec={"priority": "{{ range(90000) | list }}"}),
    "arc set": arc(set={"ctx.a": BIG}),
    "arc when": arc(when=BIG),
    "max_in_flight": step(loop={"in": [1], "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": BIG}}),
    "loop.in": step(loop={"in": BIG, "iterator": "x"}),
    "timeout_s": step(spec={"policy": {"lifecycle": {"timeout_s": BIG}}}),
    "deadline_s": step(spec={"policy": {"lifecycle": {"deadline_s": BIG}}}),
    "the rate of a quota": step(spec={"policy": {"quotas": {"rate": BIG, "key": "k"}}}),
    "the key of a quota": step(spec={"policy": {"quotas": {"rate": "10/s", "key": BIG}}}),
    "the burst of a quota": step(spec={"policy": {"quotas": {"rate": "10/s", "burst": BIG}}}),
    "a custom event": step(spec={"policy": {"emit": {"events": [{"name": "e", "payload": {"a": BIG}}]}}}),
    "step set": step(set={"ctx.a": BIG}),
    "step input": step(input={"a": BIG}),
    "task timeout": task(spec={"timeout": BIG}),
    "task set": task(set={"step.a": BIG}),
    "message of fail": rule(do="fail", message=BIG),
    "delay of retry": rule(do="retry", attempts=2, delay=BIG),
    "attempts of retry": rule(do="retry", attempts=BIG),
    "delay of continue": rule(do="continue", delay=BIG),
    "form of a wait": task("wait", timeout="1ms", form={"type": "object", "title": BIG}),
    "title of a wait": task("wait", timeout="1ms", title=BIG),
    "until of a wait": task("wait", until=BIG),
    "for of a wait": task("wait", **{"for": BIG}),
    "signal of a wait": task("wait", signal=BIG),
    "roles of a wait": task("wait", roles=[BIG]),
    "timeout of a wait": task("wait", timeout=BIG),
    "path of a child": task("playbook", path=BIG),
    "version of a child": task("playbook", path="x", version=BIG),
    "return_step of a child": task("playbook", path="x", return_step=BIG),
    "entry_step of a child": task("playbook", path="x", entry_step=BIG),
    "payload of a child": task("playbook", path="x", payload={f"k{n}": BIG for n in range(6)}),
    "payload of a child, a text": task("playbook", path="x", payload=BIG),
    "timeout of a child": task("playbook", path="x", spec={"timeout": BIG}),
    "name of a block": {**task("workbook", block=BIG), "workbook": {"b": {"tool": NOOP}}},
    "workload": {**step(), "workload": {f"k{n}": "{{ 'a' * 15000000 }}" for n in range(5)}},
    "attributes of spans": {**step(), "executor": {"spec": {"tracing": {"enabled": True, "attributes": {"a": BIG}}}}},
    "the error of a database": task("sqlite", file=":memory:", command='select * from "' + "{{ 'a' * 300000 }}" + '"'),
    "an unknown action": task("object", action=BIG, url="x"),
    "a folder": task("shell", cmd="true", cwd=BIG),
    "a schema": task(input={"a": BIG}, spec={"validation": {"input": {"properties": {"a": {"type": "number"}}}}}),
}  # fmt: skip


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    """The bytes of the log of each playbook."""

    async def size(engine, body) -> int:
        head = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "large"}}
        execution_id = await engine.orchestrator.submit(Submission(text=yaml.safe_dump({**head, **body})))
        await engine.orchestrator.wait(execution_id, timeout=60)
        return sum(len(msgspec.json.encode(each)) for each in await engine.orchestrator.events(execution_id))

    async def scenario():
        async with await open_local(home=tmp_path_factory.mktemp("large") / "home") as engine:
            return {name: await size(engine, body) for name, body in PLACES.items()}

    return asyncio.run(scenario())


@pytest.mark.parametrize("place", PLACES)
def test_a_large_value_is_no_large_event(sizes, place):
    assert 0 < sizes[place] < MOST
