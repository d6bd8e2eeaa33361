"""State between executions: `noetl state`, conflicts of concurrent executions, reruns, and tests of playbooks."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from tests.cli.test_executions import wait_for

COUNT = """
workflow:
  - step: start
    tool:
      - {name: add, kind: noop, set: {state.n: "{{ state.n | default(0) + 1 }}"}}
      - {name: show, kind: python, input: {n: "{{ state.n }}"}, code: "result = [n, context['state']['n']]"}
"""
SLOW = """
workflow:
  - step: start
    tool:
      - {name: add, kind: noop, set: {"state.KEY": "{{ state.KEY | default(0) + 1 }}"}}
      - {name: gate, kind: wait, signal: go}
"""


def values(noetl, path: str = "tests/sample") -> dict:
    return {each["key"]: each["value"] for each in noetl("state", "show", path, "--json").json["entries"]}


def test_executions_share_state(noetl, playbook):
    file = playbook(COUNT)
    for number in (1, 2, 3):
        assert noetl("run", file, "--json").json["output"]["data"] == [number, number]
    assert values(noetl) == {"n": 3}
    replayed = noetl("replay", "last", "--json").json
    assert replayed["state"] == {"n": 3} and replayed["ctx"] == {}
    assert noetl("replay", "last", "--at", "2", "--json").json["state"] == {"n": 2}
    assert noetl("rerun", "last", "--json").json["output"]["data"] == [4, 4]


def test_a_long_text_does_not_hide_what_is_beside_it(noetl):
    assert noetl("state", "set", "loads/orders", 'load={"boundary": "' + "x" * 5_000 + '", "cursor": 7}').code == 0
    assert '{"boundary":"xxxxxxxxx...","cursor":7}' in noetl("state", "show", "loads/orders").out


def test_a_failed_execution_commits_nothing(noetl, playbook):
    file = playbook(COUNT.replace("result = [n", "result = 1/0, [n"))
    assert noetl("run", file).code == 1
    assert values(noetl) == {}
    fixed = playbook(COUNT)
    rerun = noetl("rerun", "last", "--from", "start", "--version", "latest", "--json")
    assert rerun.json["output"]["data"] == [1, 1], rerun.err
    assert noetl("run", fixed, "--json").json["output"]["data"] == [2, 2]


@pytest.mark.parametrize("same", [True, False])
def test_two_executions_conflict_if_they_write_the_same_key(noetl, playbook, start, same):
    texts = [SLOW.replace("KEY", "n"), SLOW.replace("KEY", "n" if same else "m")]
    processes = []
    for number, text in enumerate(texts):
        processes.append(start("run", playbook(text, "sample"), "--json"))
        wait_for(lambda n=number: len(noetl("executions", "--status", "waiting", "--json").json) == n + 1)
    second, first = (row["execution_id"] for row in noetl("executions", "--status", "waiting", "--json").json)
    for execution_id, process in zip((first, second), processes, strict=True):
        assert noetl("signal", execution_id, "--name", "go").code == 0
        process.wait(timeout=30)
    outcomes = [json.loads(process.communicate()[0]) for process in processes]
    assert outcomes[0]["status"] == "success"
    if same:
        assert (outcomes[1]["status"], outcomes[1]["error"]["kind"]) == ("failed", "state.conflict")
        assert f"state.n of tests/sample was changed by execution {first} after" in outcomes[1]["error"]["message"]
        assert "state.conflict" in noetl("why", second).out
        assert values(noetl) == {"n": 1}
    else:
        assert outcomes[1]["status"] == "success"
        assert values(noetl) == {"n": 1, "m": 1}


def test_a_user_changes_and_removes_state(noetl, playbook):
    assert noetl("state", "set", "tests/sample", "n=10", "a.b.c=[1, x]", "token=abc").err.endswith(
        "set n, a.b.c, token\n"
    )
    assert values(noetl) == {"n": 10, "a": {"b": {"c": [1, "x"]}}, "token": "***"}
    assert noetl("run", playbook(COUNT), "--json").json["output"]["data"] == [11, 11]
    assert noetl("state", "set", "tests/sample", "a.b.d=null", "--json").json["entries"][0]["value"] == {
        "b": {"c": [1, "x"], "d": None}
    }
    assert [row["path"] for row in noetl("state", "show", "--json").json] == ["tests/sample"]
    missing = noetl("state", "reset", "tests/sample", "nothing")
    assert missing.code == 2 and "tests/sample has no key 'nothing'" in missing.err
    assert noetl("state", "reset", "tests/sample", "n", "a").code == 0
    assert list(values(noetl)) == ["token"]
    assert noetl("state", "reset", "tests/sample").code == 0
    assert noetl("state", "reset", "tests/sample").code == 2
    assert "has no state" in noetl("state", "show", "tests/sample").err
    for wrong in ("n", "=1", "a..b=1"):
        assert noetl("state", "set", "tests/sample", wrong).code == 2
    large = noetl("state", "set", "tests/sample", "x=" + "y" * 300_000)
    assert large.code == 2 and "the limit is 262,144" in large.err


def test_a_test_of_a_playbook_gives_and_expects_state(noetl, folder, playbook):
    file = playbook(COUNT)
    tests = """
tests:
  - {name: first, expect: {output: [1, 1], state: {n: 1}}}
  - {name: next, state: {n: 4, other: x}, expect: {output: [5, 5], state: {n: 5, other: x}}}
  - {name: wrong, state: {n: 4}, expect: {state: {n: 4}}}
"""
    (folder / f"{str(file).rpartition('/')[2].removesuffix('.yaml')}.test.yaml").write_text(tests)
    answer = noetl("test", file)
    assert answer.code == 1
    assert "state.n: expected 4, got 5" in answer.out + answer.err
    assert "2 passed" in answer.out + answer.err


def test_the_validator_knows_names_of_state(noetl, playbook):
    text = "workflow:\n  - step: start\n    tool:\n      - {name: a, kind: noop, set: {state.cursor: 1}}\n"
    text += '      - {name: b, kind: noop, input: {x: "{{ state.curser }}", y: "{{ state.z | default(1) }}"}}\n'
    answer = noetl("validate", playbook(text))
    assert "`state.curser` is never set [never-set]" in answer.out and "cursor" in answer.out
    assert answer.out.count("[never-set]") == 1
    wrong = "executor: {spec: {state: {commit: always}, policy: {limits: {max_state_bytes: many}}}}\n"
    answer = noetl("validate", playbook(wrong + "workflow: [{step: start, tool: {kind: noop}, set: {state: 5}}]\n"))
    assert answer.code == 3
    assert answer.out.count(": error: ") == 3, answer.out


LOAD_TWICE = """
workload: {fail: true}
workflow:
  - step: load
    tool:
      name: copy
      kind: transfer
      source: {kind: sqlite, file: shop.sqlite, table: orders, incremental: {cursor: at}}
      targets: [{kind: sqlite, file: target.sqlite, table: orders, mode: append}]
      set: {ctx.loads: "{{ ctx.loads | default(0) + 1 }}"}
    next: {spec: {mode: exclusive}, arcs: [{step: load, when: "{{ ctx.loads < 2 }}"}, {step: check}]}
  - step: check
    tool:
      - {name: check, kind: python, input: {fail: "{{ workload.fail }}"}, code: "result = 1 / (0 if fail else 1)"}
"""


def test_rows_of_several_loads_in_a_failed_execution_are_appended_once(noetl, folder, playbook):
    """The second load starts from a cursor that is never committed; so does the load of a rerun."""
    with closing(sqlite3.connect(folder / "shop.sqlite")) as shop:
        shop.execute("create table orders (id integer, at integer)")
        shop.executemany("insert into orders values (?, ?)", [(each, each // 2) for each in range(7)])
        shop.commit()
    file = playbook(LOAD_TWICE)
    assert noetl("run", file).code == 1
    assert noetl("run", file).code == 1
    assert noetl("rerun", "last", "--from", "load").code == 1
    assert noetl("rerun", "last", "--failed").code == 1
    assert noetl("run", file, "--set", "fail=false").code == 0
    with closing(sqlite3.connect(folder / "target.sqlite")) as target:
        assert target.execute("select id from orders order by id").fetchall() == [(each,) for each in range(7)]


REGIONS = """
workflow:
  - step: load
    loop: {in: [eu, us], iterator: region}
    tool:
      name: copy
      kind: transfer
      source:
        kind: sqlite
        file: shop.sqlite
        query: select * from orders where region = :region
        params: {region: "{{ iter.region }}"}
        incremental: {cursor: at, name: "{{ iter.region }}"}
      targets: [{kind: sqlite, file: target.sqlite, table: orders, mode: append}]
"""


def test_one_of_several_cursors_that_is_reset_starts_again(noetl, folder, playbook):
    """Another iteration has written the state of the step before, but not this cursor."""
    file = playbook(REGIONS)
    with closing(sqlite3.connect(folder / "shop.sqlite")) as shop:
        shop.execute("create table orders (id integer, at integer, region text)")
        for load in range(3):
            rows = [(2 * load + number, load, region) for number, region in enumerate(("eu", "us"))]
            shop.executemany("insert into orders values (?, ?, ?)", rows)
            shop.commit()
            assert noetl("run", file).code == 0
    with closing(sqlite3.connect(folder / "target.sqlite")) as target:
        target.execute("delete from orders where region = 'us'")
        target.commit()
        assert noetl("state", "reset", "tests/sample", "load.copy.us").code == 0
        assert noetl("run", file).code == 0
        assert target.execute("select id from orders order by id").fetchall() == [(each,) for each in range(6)]
