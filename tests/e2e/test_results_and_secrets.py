"""Large results, references, and secrets that are never written."""

import asyncio
import json

import pytest

from noetl.core.model.events import encode_body
from noetl.embedded import open_local


def test_a_result_too_large_for_the_log_is_stored_by_reference(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "result = {'rows': [{'id': n, 'text': 'x' * 50} for n in range(2000)], 'count': 2000}"}
        set: {ctx.rows_ref: "{{ output.ref }}", ctx.count: "{{ output.data.count }}"}
        next: {arcs: [{step: end, when: "{{ output.data.count > 100 and ctx.count == 2000 }}"}]}
      - step: end
        input: {rows_ref: "{{ ctx.rows_ref }}"}
        tool:
          - {name: get, kind: resolve, input: {ref: "{{ input.rows_ref }}", select: rows, offset: 1998}}
          - {name: look, kind: python, input: {some: "{{ get.data }}", by_name: "{{ start.rows[5].id }}", n: "{{ start.count }}"}, code: "result = [some, by_name, n]"}
    """)
    assert ran.data == [[{"id": 1998, "text": "x" * 50}, {"id": 1999, "text": "x" * 50}], 5, 2000]
    assert max(len(encode_body(recorded.body)) for recorded in ran.events) < 64 * 1024
    reference = ran.ctx["rows_ref"]
    assert reference["type"] == "blob"
    assert reference["meta"]["bytes"] > 64 * 1024


def test_inside_its_own_pipeline_the_data_is_available(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          - {name: make, kind: python, code: "result = list(range(30000))"}
          - {name: use, kind: python, input: {n: "{{ output.data | length }}", last: "{{ make.data[-1] }}"}, code: "result = [n, last]"}
    """)
    assert ran.data == [30000, 29999]
    assert ran.of("task.done", task="make")[0].outcome.ref is not None


def test_reading_payload_fields_from_a_reference_is_an_error_that_names_resolve(play):
    ran = play("""
    workload: {key: rows_ref}
    workflow:
      - step: start
        tool: {kind: python, code: "result = {'rows': list(range(30000))}"}
        set: {ctx.rows_ref: "{{ output.ref }}"}
        next: {arcs: [{step: end}]}
      - step: end
        tool: {kind: python, input: {r: "{{ ctx[workload.key].rows }}"}, code: "result = r"}
    """)
    assert ran.status == "failed"
    assert "resolve" in ran.error["message"]


def test_a_result_beyond_the_hydration_limit_names_resolve(play):
    ran = play("""
    executor: {spec: {policy: {limits: {max_hydrate_bytes: 100000}}}}
    workflow:
      - step: start
        tool: {kind: python, code: "result = {'rows': ['x' * 100] * 5000}"}
        next: {arcs: [{step: end}]}
      - step: end
        tool: {kind: python, input: {r: "{{ start.rows[0] }}"}, code: "result = r"}
    """)
    assert ran.status == "failed"
    assert "resolve" in ran.error["message"]


def test_the_server_reads_a_stored_payload_where_a_guard_needs_all_of_it(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "result = list(range(30000))"}
        next: {arcs: [{step: end, when: "{{ (output.data | sum) == 449985000 }}"}]}
      - {step: end, tool: {kind: noop}}
    """)
    assert "end" in ran.steps


def test_output_select_selects_inline_fields(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          kind: python
          code: "result = {'rows': ['x' * 100] * 2000, 'total': 2000, 'page': {'next': 7}}"
        output: {select: [total, page.next]}
        next: {arcs: [{step: end, set: {ctx.total: "{{ output.data.total }}", ctx.next: "{{ output.data.page.next }}"}}]}
      - {step: end, tool: {kind: noop}}
    """)
    assert ran.ctx == {"total": 2000, "next": 7}


# ── secrets ─────────────────────────────────────────────────────────────────────────────

SECRET = "correct-horse-battery-staple-9431"

USES = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: secret}
keychain:
  - {name: token, kind: env, var: E2E_TOKEN}
workflow:
  - step: start
    tool:
      kind: python
      input: {token: "{{ keychain.token }}"}
      code: |
        import base64
        print("the token is", token)
        result = {"token": token, "encoded": base64.b64encode(token.encode()).decode(), "length": len(token)}
    next:
      arcs:
        - {step: bad, when: "{{ output.data.length == 33 }}"}
  - step: bad
    tool: {kind: python, input: {token: "{{ keychain.token }}"}, code: "raise ValueError(f'no entry with {token}')"}
"""


def test_a_secret_is_used_and_never_written(tmp_path, monkeypatch):
    monkeypatch.setenv("E2E_TOKEN", SECRET)

    async def scenario():
        async with await open_local(home=tmp_path) as engine:
            result = await engine.run(USES, timeout=20)
            events = await engine.orchestrator.events(result.execution_id)
            return result, events

    result, events = asyncio.run(scenario())
    assert result.status == "failed"
    assert "no entry with" in result.error["message"]
    done = next(recorded.body for recorded in events if recorded.body.NAME == "step.done")
    assert done.output.data["length"] == 33
    written = b"".join(encode_body(recorded.body) for recorded in events) + json.dumps(result.document()).encode()
    files = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    for form in (SECRET.encode(), b"Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZS05NDMx"):
        assert form not in written
        assert form not in files


def test_a_missing_secret_fails_the_request_and_names_it(tmp_path, monkeypatch):
    monkeypatch.delenv("E2E_TOKEN", raising=False)

    async def scenario():
        async with await open_local(home=tmp_path) as engine:
            result = await engine.run(USES, timeout=20)
            return result, [recorded.body.NAME for recorded in await engine.orchestrator.events(result.execution_id)]

    result, names = asyncio.run(scenario())
    assert result.status == "failed"
    assert "token" in result.error["message"] and "E2E_TOKEN" in result.error["message"]
    assert "workflow.started" not in names


@pytest.mark.parametrize("place", ["when", "set"])
def test_a_secret_in_a_server_side_template_is_rejected_by_validation(place):
    import noetl

    arc = {"when": 'when: "{{ keychain.token }}"', "set": 'set: {ctx.t: "{{ keychain.token }}"}'}[place]
    text = USES.replace('when: "{{ output.data.length == 33 }}"', arc)
    assert any("keychain" in problem.code for problem in noetl.validate(text) if problem.severity == "error")


def test_fields_of_keychain_entries_read_evaluated_workload_defaults(play):
    """Before the workflow starts and on the worker; the request's own values are data."""
    text = """
    workload: {base: ab, path: "{{ workload.base }}/{{ tail }}", tail: "{{ 'c' * 3 }}", at: "{{ now() }}"}
    keychain:
      - {name: one, kind: static, value: "{{ workload.path }}"}
      - {name: two, kind: bearer, token: "{{ path }}-{{ keychain.one }}"}
    workflow:
      - step: start
        tool:
          kind: python
          input: {one: "{{ keychain.one }}", two: "{{ keychain.two }}"}
          code: "result = [len(one), len(two)]"
    """
    assert play(text).data == [6, 13]
    assert play(text, {"path": "{{ x }}"}).data == [7, 15]
    failed = play(text.replace("{{ tail }}", "{{ nothing }}"))
    assert failed.status == "failed" and failed.error["kind"] == "template" and "nothing" in failed.error["message"]
