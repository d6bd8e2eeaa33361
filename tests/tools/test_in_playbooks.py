"""Tools in playbooks: from the source text to the output."""

from __future__ import annotations

import asyncio
import textwrap

import pytest
from web import serving

from noetl.embedded import open_local
from noetl.errors import InvalidPlaybook

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


@pytest.fixture
def run(tmp_path):
    """Run a playbook's body from a file of its own; the data of its output."""

    def run(body, payload=None, *, server=False, status="success"):
        async def go():
            shop = serving() if server else None
            base = (await shop.__aenter__()).base if shop else ""
            try:
                async with await open_local(store="memory:", home=tmp_path / "home") as engine:
                    file = tmp_path / "play.yaml"
                    file.write_text(HEAD + textwrap.dedent(body).replace("$SERVER", base))
                    return await engine.run(str(file), payload, timeout=60)
            finally:
                if shop:
                    await shop.__aexit__(None, None, None)

        result = asyncio.run(go())
        assert result.status == status, result.error
        return result.output["data"] if status == "success" else result.error

    return run


def test_python_inputs_libs_and_main(run):
    assert run(
        """
        workload: {numbers: [3, 4]}
        workflow:
          - step: start
            tool:
              kind: python
              libs: {m: math}
              input: {numbers: "{{ workload.numbers }}"}
              code: |
                def main(numbers):
                    return {"hypot": m.hypot(*numbers)}
        """
    ) == {"hypot": 5.0}


def test_python_args_result_variable_and_names_like_parameters(run):
    assert run(
        """
        workflow:
          - step: start
            tool:
              kind: python
              args: {module: m1, env: prod, script: s, libs: one, x: 2}
              code: |
                result = [module, env, script, libs, x, args.x, input_data["x"]]
        """
    ) == ["m1", "prod", "s", "one", 2, 2, 2]


@pytest.mark.parametrize("name", ["workload.x", "keychain.x"])
def test_python_code_is_never_rendered(run, name):
    text = f"{{{{ {name} }}}} {{% if %}}"
    code = f"result = '{text}'"
    assert run(f"workflow:\n  - step: start\n    tool:\n      kind: python\n      code: |\n        {code}\n") == text


def test_python_context_has_the_scopes_and_the_results_of_steps(run):
    assert run(
        """
        workload: {user: {name: Ada}}
        workflow:
          - step: user_raw
            tool:
              kind: python
              code: |
                def main(context):
                    return {"id": 7, "name": context.workload.get('user')['name']}
            next: {arcs: [{step: join}]}
          - step: join
            tool:
              kind: python
              code: |
                def main(context, results):
                    u = context["user_raw"]
                    return [u["id"], results["user_raw"]["name"], context.get('nothing', 'default'),
                            context.workload.user.name]
        """
    ) == [7, "Ada", "default", "Ada"]


def test_python_from_a_file_and_from_a_module(run, tmp_path):
    (tmp_path / "job.py").write_text("def main(n):\n    return n * 2\n")
    (tmp_path / "calc.py").write_text("def triple(n):\n    return n * 3\n")
    assert run(
        """
        workflow:
          - step: start
            tool:
              - {name: file, kind: python, script: {uri: job.py}, input: {n: 2}}
              - {name: module, kind: python, module: calc, callable: triple, input: {n: "{{ file }}"}}
        """
    ) == 12  # fmt: skip


def test_python_errors_route_by_their_exception(run):
    assert run(
        """
        workflow:
          - step: start
            tool:
              - name: risky
                kind: python
                code: |
                  raise KeyError("gone")
                spec:
                  policy:
                    rules:
                      - when: "{{ output.status == 'error' and output.py.exception_type == 'KeyError' }}"
                        then: {do: continue, set: {step.line: "{{ output.py.line }}"}}
                      - else: {then: {do: fail}}
              - {name: after, kind: noop, input: {line: "{{ step.line }}"}}
        """
    ) == {"line": 11}


def test_http_results_by_name_and_errors_by_status(run):
    assert run(
        """
        workflow:
          - step: start
            tool:
              kind: http
              method: POST
              endpoint: "$SERVER/echo"
              data: {query: {page: 2}, body: {a: 1}}
            next:
              arcs: [{step: missing}]
          - step: missing
            tool:
              kind: http
              url: "$SERVER/status/404"
              spec:
                policy:
                  rules:
                    - when: "{{ output.http.status == 404 and output.error.kind == 'not_found' }}"
                      then: {do: continue}
                    - else: {then: {do: fail}}
            next:
              arcs: [{step: end}]
          - step: end
            tool:
              kind: noop
              input:
                path: "{{ start.path }}"
                body: "{{ start.data.body }}"
                status: "{{ start.status_code }}"
                missing: "{{ missing.data.code }}"
        """,
        server=True,
    ) == {"path": "/echo?page=2", "body": '{"a":1}', "status": 200, "missing": 404}


def test_http_without_an_answer_has_a_null_status(run):
    assert run(
        """
        workflow:
          - step: start
            tool:
              - name: dead
                kind: http
                url: http://127.0.0.1:1/
                spec:
                  policy:
                    rules:
                      - when: "{{ output.status == 'error' and output.http.status in [429, 500] }}"
                        then: {do: fail}
                      - when: "{{ output.http.status is none and output.error.kind == 'connection' }}"
                        then: {do: continue}
                      - else: {then: {do: fail}}
              - {name: fine, kind: noop, input: {ok: true}}
        """
    ) == {"ok": True}


def test_shell_in_its_spellings_with_hostile_values(run):
    assert run(
        """
        workload: {name: "it's; touch pwned"}
        workflow:
          - step: start
            tool:
              - {name: one, kind: shell, cmd: "printf %s {{ workload.name }}"}
              - {name: two, kind: shell, cmds: ["x={{ workload.name }}", 'printf "<%s>" "$x"']}
              - {name: three, kind: script, command: [printf, "%s", "{{ workload.name }}"]}
              - name: all
                kind: noop
                input: {seen: ["{{ one.stdout }}", "{{ two.data.stdout }}", "{{ three.stdout }}"]}
        """
    ) == {"seen": ["it's; touch pwned", "<it's; touch pwned>", "it's; touch pwned"]}


def test_a_shell_that_fails_is_an_error_with_its_output(run):
    failure = run(
        "workflow:\n  - step: start\n    tool: {kind: shell, cmd: 'echo out; echo bad >&2; exit 4'}\n", status="failed"
    )
    assert failure["kind"] == "shell" and "exited with status 4: bad" in failure["message"]


def test_keychain_entries_are_passed_to_tools_and_masked_afterwards(run, tmp_path):
    (tmp_path / "token.txt").write_text("s3cr3t-token-value\n")
    assert run(
        """
        keychain:
          - {name: token, kind: file, path: token.txt}
        workflow:
          - step: start
            tool:
              - {name: call, kind: http, url: "$SERVER/echo", auth: token}
              - name: check
                kind: python
                input: {sent: "{{ call.headers.authorization }}", token: "{{ keychain.token }}"}
                code: |
                  result = {"same": sent == "Bearer " + token, "shown": token}
        """,
        server=True,
    ) == {"same": True, "shown": "***"}


def test_a_missing_secret_fails_the_request_by_name(run):
    failure = run(
        "keychain:\n  - {name: api_token, kind: env, var: NOT_SET_ANYWHERE}\n"
        "workflow:\n  - step: start\n    tool: {kind: noop}\n",
        status="failed",
    )
    assert "api_token" in failure["message"] and "NOT_SET_ANYWHERE" in failure["message"]


def test_a_kind_of_a_missing_plug_in_fails_when_it_runs(run):
    failure = run("workflow:\n  - step: start\n    tool: {kind: snowflake, query: SELECT 1}\n", status="failed")
    assert "plug-in that is not installed" in failure["message"]


GREET = """
from noetl.core.model.outcome import ok
from noetl.core.model.tool import Field, ToolSpec

SPEC = ToolSpec(kind="greet", doc="Says hello.", fields={"who": Field("string", "Whom.", required=True)},
                helpers={"greet": {"loud": None}})

async def run(call):
    return ok({"said": f"hello {call.input['who']}"})
"""


def test_a_kind_of_a_plug_in_package_is_validated_and_run(run, plugins):
    plugins("noetl_greet", GREET, {"greet": "noetl_greet"})
    assert run(
        """
        workload: {name: Ada}
        workflow:
          - step: start
            tool:
              - {name: hi, kind: greet, who: "{{ workload.name }}"}
              - {name: all, kind: noop, input: {said: "{{ hi.said }}", loud: "{{ hi.greet.loud }}"}}
        """
    ) == {"said": "hello Ada", "loud": None}
    with pytest.raises(InvalidPlaybook) as problems:
        run("workflow:\n  - step: start\n    tool: {kind: greet}\n")
    assert [problem.code for problem in problems.value.diagnostics] == ["missing-parameter"]


def test_iterations_of_python_code_fail_one_by_one(run, tmp_path):
    """One ends its process, one exceeds its timeout; the others succeed, and each starts once."""
    started = tmp_path / "started"
    data = run(
        """
        workload: {file: $FILE}
        workflow:
          - step: start
            loop:
              in: "{{ range(80) | list }}"
              iterator: n
              spec: {mode: parallel, max_in_flight: 80}
            spec: {policy: {failure: {mode: best_effort}}}
            tool:
              kind: python
              input: {n: "{{ iter.n }}", file: "{{ workload.file }}"}
              spec: {timeout: 2, effect: at_most_once}
              code: |
                import os
                with open(file, "a") as out:
                    out.write(f"{n} ")
                if n == 37:
                    os._exit(3)
                while n == 61:
                    pass
                result = n
            next: {arcs: [{step: end}]}
          - step: end
            tool: {kind: python, input: {all: "{{ start.results }}", loop: "{{ start.stats }}"}, code: "result = [all, loop]"}
        """.replace("$FILE", str(started))
    )
    values, stats = data
    assert values == [None if n in (37, 61) else n for n in range(80)]
    failures = {each["index"]: each["error"] for each in stats["failures"]}
    assert failures[37]["message"].endswith("exit status 3") and failures[61]["kind"] == "timeout"
    assert (stats["succeeded"], stats["failed"]) == (78, 2)
    assert sorted(map(int, started.read_text().split())) == list(range(80))
