"""The eight acceptance scenarios of the implementation brief (000 section 13), by name,
in canonical and in v10 text, on the embedded engine, against a real HTTP server."""

import msgspec
import pytest

import noetl
from noetl.core.model.events import encode_body

POLICY = {
    "canonical": """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: policy}}
workflow:
  - step: start
    tool:
      - name: call
        kind: noop
        spec:
          policy: {policy}
""",
    "v10": """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: policy}}
workflow:
  - step: start
    tool:
      - call:
          kind: noop
          spec:
            policy: {policy}
""",
}


@pytest.mark.parametrize(
    "policy",
    [
        '[{when: "{{ true }}", then: {do: continue}}]',
        '"retry"',
        "{rules: {do: retry}}",
        "{mode: exclusive}",
        '{rules: [{when: "{{ true }}", then: {attempts: 3}}]}',
        "{rules: [{else: {then: {set: {ctx.a: 1}}}}]}",
    ],
)
def test_1_policy_validation(surface, policy):
    text = POLICY[surface].format(policy=policy)
    found = [each for each in noetl.validate(text) if each.severity == "error"]
    assert found and all(each.line >= 10 for each in found)
    with pytest.raises(noetl.InvalidPlaybook):
        noetl.run(text, store="memory:")


def test_1_policy_validation_accepts_the_one_shape(surface):
    text = POLICY[surface].format(policy="{rules: [{else: {then: {do: continue}}}]}")
    assert [each for each in noetl.validate(text) if each.severity == "error"] == []


def test_2_retry_fails_after_all_attempts(run, api):
    api.failures["/ok"] = 100
    ran = run("retry", url=api.url + "/ok")
    assert ran.result.status == "failed"
    assert api.requests == ["/ok"] * 4
    assert [body.attempt for body in ran.of("task.done")] == [1, 2, 3, 4]
    assert [body.do for body in ran.of("task.done")] == ["retry", "retry", "retry", "fail"]
    assert ran.result.error["kind"] == "server_error"
    assert [(row.step, row.status, row.attempts) for row in ran.result.steps] == [("start", "failed", 4)]


def test_2_retry_goes_on_when_the_fault_is_over(run, api):
    api.failures["/ok"] = 2
    ran = run("retry", url=api.url + "/ok")
    assert ran.result.status == "success"
    assert api.requests == ["/ok"] * 3
    assert [(row.step, row.attempts) for row in ran.result.steps] == [("start", 3), ("end", 1)]


def test_3_jump_routing(run, api):
    found = run("jump_routing", api_url=api.url, code=200)
    assert found.result.status == "success"
    assert found.result.data == {"stored": "ok", "body": {"code": 200}}
    assert [body.task for body in found.of("task.done")] == ["fetch", "store_200"]
    missing = run("jump_routing", api_url=api.url, code=404)
    assert missing.result.status == "success"
    assert missing.result.data == {"stored": "missing", "url": f"{api.url}/status/404"}
    assert [body.task for body in missing.of("task.done")] == ["fetch", "store_404"]
    assert run("jump_routing", api_url=api.url, code=403).result.status == "failed"


def test_4_streaming_pagination(run, api):
    api.failures["/pages/a"] = 1
    ran = run("pagination", api_url=api.url)
    assert ran.result.status == "success"
    assert ran.result.data == {"rows": [7, 5], "pages": [3, 1]}
    assert api.counts() == {"/pages/a": 4, "/pages/b": 1}
    assert "never" not in {body.task for body in ran.of("task.done")}
    visits = [(body.path, body.visit, body.attempt) for body in ran.of("task.done") if body.task == "fetch_page"]
    assert visits == [((0,), 1, 1), ((0,), 1, 2), ((0,), 2, 1), ((0,), 3, 1), ((1,), 1, 1)]


def test_5_parallel_loop(run, api):
    ran = run("parallel_loop", api_url=api.url)
    assert ran.result.status == "success"
    assert ran.result.data == [{"mine": n * 10, "number": n, "seen": n, "index": n} for n in range(12)]
    assert 1 < api.most_running <= 3
    held = most = 0
    for recorded in ran.events:
        held += {"loop.iteration.started": 1, "loop.iteration.done": -1}.get(recorded.body.NAME, 0)
        most = max(most, held)
    assert most == 3


def test_6_nested_loops(run, api):
    ran = run("nested_loops", api_url=api.url)
    assert ran.result.status == "success"

    def hotel(city, city_index, name, index):
        rooms = [f"{city}-{name}-{page}" for page in (1, 2, 3)]
        return {"city": city, "city_index": city_index, "hotel": name, "index": index, "rooms": rooms}

    assert ran.result.data == [
        [hotel("bern", 0, "b1", 0), hotel("bern", 0, "b2", 1)],
        [hotel("oslo", 1, "o1", 0)],
        [],
    ]
    bern = [path for path in api.requests if "/bern/" in path]
    assert bern == ["/rooms/bern/b1"] * 3 + ["/rooms/bern/b2"] * 3


@pytest.mark.parametrize(("mode", "taken"), [("exclusive", ["large"]), ("inclusive", ["large", "positive"])])
def test_7_next_routing(run, mode, taken):
    ran = run(f"next_{mode}")
    assert ran.result.status == "success"
    assert [row.step for row in ran.result.steps] == ["start", *taken]
    assert [(choice.target, choice.held) for choice in ran.of("next.evaluated")[0].arcs][:2] == [
        ("never", False),
        ("large", True),
    ]


def test_8_result_references(run, api):
    ran = run("references", api_url=api.url)
    assert ran.result.status == "success"
    sizes = [len(encode_body(recorded.body)) for recorded in ran.events]
    assert max(sizes) < 4096 + 2048
    (ended, read) = ran.of("step.done")
    assert ended.output.data is None
    assert ended.output.ref.meta.bytes > 4096
    assert len(ended.output.ref.meta.sha256) == 64
    assert read.output.data == {
        "some": [{"id": n, "text": "x" * 40} for n in (10, 11, 12)],
        "last": {"id": 399, "text": "x" * 40},
    }
    assert msgspec.json.encode(ran.result.document())
