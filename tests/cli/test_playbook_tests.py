"""`noetl test`: mocked, recorded and real tools; every difference is reported."""

from __future__ import annotations

import json

import pytest

ORDERS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: orders, path: shop/orders}
workload: {day: never}
keychain:
  - {name: shop, kind: credential}
workflow:
  - step: fetch
    tool:
      - name: get
        kind: http
        url: "https://shop.example/orders?day={{ workload.day }}"
        headers: {Authorization: "{{ keychain.shop.token }}"}
        spec:
          policy:
            rules:
              - when: "{{ output.http.status == 503 }}"
                then: {do: retry, attempts: 3, delay: 30}
              - when: "{{ output.status == 'error' }}"
                then: {do: fail}
    next:
      arcs:
        - step: total
          when: "{{ event.name == 'step.done' and fetch.rows | length > 0 }}"
        - step: nothing
          when: "{{ event.name == 'step.done' }}"
  - step: total
    tool: {kind: python, input: {rows: "{{ fetch.rows }}"}, code: "result = sum(row['price'] for row in rows)"}
    set: {ctx.counted: "{{ fetch.rows | length }}"}
  - step: nothing
    tool: {kind: noop, returns: none today}
"""
GOOD = """\
secrets: {shop: {token: swordfish}}
tests:
  - name: a day with orders
    payload: {day: monday}
    mocks:
      fetch.get: {data: {rows: [{price: 3}, {price: 4}], day: "{{ input.url[-6:] }}"}, http: {status: 200}}
    expect:
      output: 7
      ctx: {counted: 2}
      steps: {fetch: success, total: {status: success, runs: 1}}
      order: [fetch, total]
      calls: {get: [{url: "https://shop.example/orders?day=monday"}], "kind:http": 1}
      check: "{{ output.data > 6 }}"
  - name: a day without orders
    mocks: {fetch: {data: {rows: []}}}
    expect: {output: none today, order: [fetch, nothing]}
  - name: the shop is away twice
    mocks:
      get:
        sequence:
          - {error: {kind: server_error, message: busy}, http: {status: 503}}
          - {error: {kind: server_error, message: busy}, http: {status: 503}}
          - {data: {rows: [{price: 1}]}, http: {status: 200}}
    expect: {output: 1, calls: {fetch: 3}}
  - name: the shop is broken
    mocks: {get: {error: {kind: client_error, message: who are you}, http: {status: 401}}}
    expect: {status: failed, error: {kind: client_error, message: who are}, steps: {fetch: failed}}
"""


@pytest.fixture
def orders(folder):
    (folder / "orders.yaml").write_text(ORDERS)

    def write(text: str, name: str = "orders.test.yaml") -> str:
        (folder / name).write_text(text)
        return name

    return write


def test_mocked_tools_replace_external_services(noetl, orders):
    orders(GOOD)
    answer = noetl("test")
    assert answer.code == 0, answer.out
    assert answer.out.count("ok ") == 4
    assert answer.err == "4 passed\n"
    assert noetl("test", "-k", "without", "--json").json[0]["name"] == "a day without orders"
    assert "swordfish" not in answer.out


def test_every_difference_is_reported(noetl, orders):
    orders(
        "secrets: {shop: {token: x}}\n"
        "tests:\n"
        "  - name: wrong in many ways\n"
        "    mocks: {fetch: {data: {rows: [{price: 3}]}}, fetsh: 1}\n"
        "    expect:\n"
        "      output: 4\n"
        "      ctx: {counted: 9, other: 1}\n"
        "      steps: {nothing: success}\n"
        "      order: [fetch]\n"
        "      calls: {get: 2}\n"
        "      error: something\n"
        "      check: [\"{{ status == 'failed' }}\"]\n"
    )
    answer = noetl("test", "--json")
    assert answer.code == 1
    (one,) = answer.json
    assert one["status"] == "failed"
    found = "\n".join(one["problems"])
    for words in (
        "output: expected 4, got 3",
        "ctx.counted: expected 9, got 1",
        "ctx.other: expected 1, but it is missing",
        'steps.nothing.status: expected "success", got "not reached"',
        "order: expected 1 items, got 2",
        "calls.get: expected 2, got 1",
        'error: expected "something", got none',
        "is false",
        "mocks.fetsh was never used",
    ):
        assert words in found, words
    assert "FAILED" in noetl("test").out


def test_an_external_tool_without_a_mock_fails_with_an_explanation(noetl, orders):
    orders("secrets: {shop: {token: x}}\ntests: [{name: no mock}]\n")
    answer = noetl("test")
    assert answer.code == 1
    assert "no mock for fetch.get" in answer.out
    orders("tests: [{name: no secret, mocks: {fetch: {data: {rows: []}}}}]\n")
    assert "has no value under secrets" in noetl("test").out


def test_files_that_cannot_be_used_are_exit_code_3_and_no_tests_are_2(noetl, orders, folder):
    assert noetl("test").code == 2
    for text, words in (
        ("tests: [{nam: x}]", ":1:10: unknown key nam"),
        ("tests: []", "no tests"),
        ("tests: [{name: a, expect: {stats: 1}}]", "stats"),
        ("tests: [", "orders.test.yaml:2:1"),
        ("playbook: other.yaml\ntests: [{name: a}]", "other.yaml does not exist"),
    ):
        orders(text)
        answer = noetl("test")
        assert answer.code == 3, text
        assert words in answer.err
        assert "Traceback" not in answer.err
    (folder / "orders.test.yaml").unlink()
    assert noetl("test", "missing.test.yaml").code == 2
    (folder / "bad.yaml").write_text("workflow: 7")
    orders("tests: [{name: a}]", "bad.test.yaml")
    answer = noetl("test")
    assert answer.code == 3
    assert "bad.yaml:1" in answer.out


def test_a_recorded_execution_is_a_test(noetl, playbook, folder):
    file = playbook(
        "workload: {items: [1, 2, 3]}\n"
        "workflow:\n"
        "  - step: start\n"
        '    loop: {in: "{{ workload.items }}", iterator: item, spec: {mode: parallel, max_in_flight: 3}}\n'
        "    tool: {kind: shell, cmd: 'cat \"n{{ iter.item }}\"'}\n"
        "    next: {arcs: [{step: end}]}\n"
        '  - step: end\n    tool: {kind: python, input: {texts: "{{ start.results }}"}, code: "result = texts"}\n',
        "cats",
    )
    for number in (1, 2, 3):
        (folder / f"n{number}").write_text(f"cat {number}")
    ran = noetl("run", file, "--json").json
    assert ran["status"] == "success"
    written = noetl("test", "--record", ran["execution_id"])
    assert written.code == 0, written.err
    (folder / "cats.test.yaml").write_text(written.out)
    for number in (1, 2, 3):
        (folder / f"n{number}").unlink()
    answer = noetl("test", "cats.test.yaml")
    assert answer.code == 0, answer.out
    (folder / "cats.test.yaml").write_text(written.out.replace("cat 2", "dog 2", 1))
    assert noetl("test").code == 1
    assert json.loads(noetl("test", "--json").out)[0]["problems"]
