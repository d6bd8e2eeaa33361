"""Outputs, results by name, references, the quiet undefined, plain data."""

from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pytest

from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.reference import STORED, Reference, ReferenceMeta
from noetl.core.templates.template import evaluate, holds
from noetl.core.templates.views import (
    KEYS,
    Missing,
    NeedsPayload,
    OutputView,
    ReferenceView,
    ResultView,
    extract,
    plain,
    with_stored,
)
from noetl.errors import TemplateError

REFERENCE = Reference(
    type="blob", locator={"path": "r/1"}, meta=ReferenceMeta(content_type="application/json", bytes=9, sha256="ab")
)
HTTP = {"status": 200, "headers": {"x": "1"}, "url": "http://h/", "elapsed_ms": 3, "request_id": None}
BODY = {"data": [1, 2], "paging": {"hasMore": True}, "status": "fine"}


def names(outcome, **more):
    return {
        "output": OutputView(outcome),
        "outcome": OutputView(outcome, name="outcome"),
        "fetch": ResultView(outcome, name="fetch"),
        **more,
    }


def stored(**more):
    return Outcome(status="ok", ref=REFERENCE, **more)


# ── output: the envelope, then the payload ──────────────────────────────────────────────


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ output.status }}", "ok"),
        ("{{ output.data }}", BODY),
        ("{{ output.data.status }}", "fine"),
        ("{{ output.data.data[1] }}", 2),
        ("{{ output.paging.hasMore }}", True),
        ("{{ output.http.status }}", 200),
        ("{{ output.http.request_id }}", None),
        ("{{ output.body.status }}", "fine"),
        ("{{ output.status_code }}", 200),
        ("{{ output.ref }}", None),
        ("{{ output.meta.attempt }}", 1),
        ("{{ output.error is defined }}", False),
        ("{{ outcome.result.data.paging.hasMore }}", True),
        ("{{ outcome.result.data.data | default([]) }}", [1, 2]),
        ("{{ outcome.result.paging.hasMore }}", True),
        ("{{ outcome.http.status in [200, 201] }}", True),
    ],
)
def test_output_is_read_from_the_envelope_and_then_from_the_payload(template, value):
    assert evaluate(template, names(ok(BODY, meta={"attempt": 1}, http=HTTP))) == value


def test_an_output_as_a_whole_is_its_payload():
    assert evaluate("{{ output }}", names(ok([1, 2]))) == [1, 2]
    assert evaluate("<{{ output }}>", names(ok({"a": 1}))) == "<{'a': 1}>"
    assert evaluate("{{ output | length }}", names(ok([1, 2]))) == 2


def test_a_pythons_none_is_a_value_and_not_undefined():
    assert evaluate("{{ output.data is none }}", names(ok(None))) is True
    assert evaluate("{{ output }}", names(ok(None))) is None


def test_an_error_has_kind_message_retryable_and_details():
    given = names(error("timeout", "too slow", details={"after": 3}, http={"status": None}))
    assert evaluate("{{ output.error.kind }}/{{ output.error.retryable }}", given) == "timeout/True"
    assert evaluate("{{ output.error.details.after }}", given) == 3
    assert evaluate("{{ output.http.status is none }}", given) is True
    assert evaluate("{{ output.error }}", given)["message"] == "too slow"


# ── results by name: the payload, then the envelope ─────────────────────────────────────


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ fetch.status }}", "fine"),
        ("{{ fetch.paging.hasMore }}", True),
        ("{{ fetch.data.paging.hasMore }}", True),
        ("{{ fetch.data }}", [1, 2]),
        ("{{ fetch.data[0] }}", 1),
        ("{{ fetch.http.status }}", 200),
        ("{{ fetch.status_code }}", 200),
        ("{{ fetch.data.status_code }}", 200),
        ("{{ fetch.body.paging.hasMore }}", True),
        ("{{ fetch.context.paging.hasMore }}", True),
        ("{{ fetch.error is defined }}", False),
        ("{{ fetch }}", {"data": BODY, "body": BODY, "status_code": 200, "headers": {"x": "1"}, "url": "http://h/"}),
    ],
)
def test_a_result_by_name_is_read_from_the_payload_and_then_from_the_envelope(template, value):
    assert evaluate(template, names(ok(BODY, http=HTTP))) == value


@pytest.mark.parametrize("path", ["rows[0].id", "row_count", "rows | length", "columns"])
def test_a_result_by_name_and_its_data_agree(path):
    given = names(ok({"rows": [{"id": 7}], "row_count": 1, "columns": ["id"]}))
    assert evaluate(f"{{{{ fetch.{path} }}}}", given) == evaluate(f"{{{{ fetch.data.{path} }}}}", given)


def test_a_payloads_own_error_key_is_defined_only_when_it_is_there():
    assert holds("{{ fetch.error is defined }}", names(ok({"error": "bad token"})))
    assert not holds("{{ fetch.error is defined }}", names(ok({"sub": "x"})))


def test_a_key_wins_over_a_method_of_a_mapping():
    given = names(ok({"items": [1], "keys": "own", "values": 3}))
    assert evaluate("{{ output.data.items }}{{ fetch.keys }}{{ fetch.data.values }}", given) == "[1]own3"
    assert evaluate("{{ output.meta.items() }}", given) == []


def test_a_list_payload_is_read_by_index_length_loop_and_slice():
    given = names(ok([3, 4, 5]))
    assert evaluate("{{ fetch[0] + fetch.data[1] + output[2] }}", given) == 12
    assert evaluate("{{ fetch | length }}{% for x in fetch %},{{ x }}{% endfor %}", given) == "3,3,4,5"
    assert evaluate("{{ fetch[1:] }}", given) == [4, 5]
    assert evaluate("{{ 4 in fetch }}", given) is True


def test_a_loop_is_results_and_stats_as_a_whole():
    stats = {"total": 2, "succeeded": 1, "failed": 1, "skipped": 0}
    given = names(ok([{"n": 1}, None], loop=stats))
    assert evaluate("{{ fetch }}", given) == {"results": [{"n": 1}, None], "stats": stats}
    assert evaluate("{{ fetch.results[0].n }} {{ fetch.stats.failed }} {{ output.loop.total }}", given) == "1 1 2"
    assert evaluate("{{ output.data }}", given) == [{"n": 1}, None]


def test_a_composite_step_has_the_results_of_its_tasks():
    tasks = {"get": ok({"id": 5}), "store": ok({"rows": []})}
    given = {"load": ResultView(ok({"rows": []}), name="load", results=tasks)}
    assert evaluate("{{ load.results.get.id }}", given) == 5
    assert evaluate("{{ load.results.get.data.id }}", given) == 5
    assert evaluate("{{ load.results }}", given) == {"get": {"id": 5}, "store": {"rows": []}}
    with pytest.raises(TemplateError, match="get, store"):
        evaluate("{{ load.results.got }}", given)


def test_an_unknown_field_is_named_with_what_the_result_has():
    with pytest.raises(TemplateError, match=r'"fetch.rosw" is not defined here; fetch has: .*rows.*did you mean'):
        evaluate("{{ fetch.rosw }}", names(ok({"rows": []})))


# ── the quiet undefined ─────────────────────────────────────────────────────────────────

QUIET = {"later": Missing("later", '"later" has not run'), "output": OutputView(ok(1))}


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ later is defined }}", False),
        ("{{ later.data.x is defined }}", False),
        ("{{ later.data.x | default(5) }}", 5),
        ("{{ 'yes' if later else 'no' }}", "no"),
        ("{{ not later.status }}", True),
        ("{{ later.x or 'else' }}", "else"),
        ("{{ later is none }}", True),
        ("{{ later == none }}", True),
        ("{{ later.x != none }}", False),
        ("{{ output.error.kind == 'rate_limit' }}", False),
        ("{{ output.error.kind != 'rate_limit' }}", True),
        ("{{ output.error.kind in ['rate_limit', 'timeout'] }}", False),
        ("{{ output.error and output.error.retryable }}", None),
        ("{% if output.error %}bad{% else %}good{% endif %}", "good"),
        ("{% if later.status == 'ok' %}a{% else %}b{% endif %}", "b"),
    ],
)
def test_a_step_that_has_not_run_is_missing_without_an_error(template, value):
    if value is None:
        assert holds(template, QUIET) is False
    else:
        assert evaluate(template, QUIET) == value


def test_a_missing_value_is_false_as_a_guard():
    assert holds("{{ later }}", QUIET) is False
    assert holds("{{ output.error }}", QUIET) is False


@pytest.mark.parametrize(
    "template",
    [
        "{{ later }}",
        "x{{ later.data }}",
        "{{ later + 1 }}",
        "{{ later.x ~ 'a' }}",
        "{{ later > 1 }}",
        "{{ later | length }}",
        "{{ later | upper }}",
        "{% for x in later %}{% endfor %}",
        "{{ [later] }}",
        "{{ {'a': later.b} }}",
        "{{ 'a' in later }}",
        "{{ later() }}",
        "{{ later | tojson }}",
    ],
)
def test_using_a_missing_value_is_an_error_with_a_reason(template):
    with pytest.raises(TemplateError, match=r'"later.*" has no value: "later" has not run; test it with "is defined"'):
        evaluate(template, QUIET)


# ── references ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("given", [ReferenceView(REFERENCE), plain(ReferenceView(REFERENCE))], ids=["view", "data"])
def test_a_reference_shows_its_locator_and_refuses_payload_fields(given):
    scope = {"ctx": {"rows_ref": given}}
    assert evaluate("{{ ctx.rows_ref.type }} {{ ctx.rows_ref.locator.path }}", scope) == "blob r/1"
    assert evaluate("{{ ctx.rows_ref.meta.bytes }}", scope) == 9
    assert evaluate("{{ ctx.rows_ref.auth_reference }}", scope) is None
    for template in (
        "{{ ctx.rows_ref.rows }}",
        "{{ ctx.rows_ref.rows | default([]) }}",
        "{% for row in ctx.rows_ref %}{{ row }}{% endfor %}",
    ):
        with pytest.raises(TemplateError, match="kind: resolve"):
            evaluate(template, scope)


def test_an_output_ref_as_a_value_is_the_reference_object():
    scope = names(stored())
    assert evaluate("{{ output.ref }}", scope)["locator"] == {"path": "r/1"}
    assert evaluate("{{ fetch._ref }}", scope) == evaluate("{{ output.ref }}", scope)
    assert evaluate("{{ fetch.ref.type }}", {"fetch": ResultView(stored(), resolve=lambda _: {})}) == "blob"


def test_a_stored_payload_is_read_once_when_it_is_first_needed():
    requested = []

    def resolve(reference):
        requested.append(reference)
        return {"rows": [1, 2], "data": {"x": 5}}

    view = ResultView(stored(), name="fetch", resolve=resolve)
    assert evaluate("{{ fetch.status }} {{ fetch.ref.type }}", {"fetch": view}) == "ok blob"
    assert requested == []
    assert evaluate("{{ fetch.rows | length }}{{ fetch.data.rows }}{{ fetch.data.x }}", {"fetch": view}) == "2[1, 2]5"
    assert evaluate("{{ fetch }}", {"fetch": view})["rows"] == [1, 2]
    assert requested == [REFERENCE]


@pytest.mark.parametrize("scope", ["ctx", "state", "args", "input"])
def test_a_whole_scope_has_the_data_of_its_stored_values(scope):
    marker = {STORED: msgspec.to_builtins(REFERENCE)}
    values = {scope: with_stored({"big": marker, "small": 1}, lambda _: ["data"])}
    for template in (f"{{{{ {scope} }}}}", f"{{{{ {{'small': 1, 'big': {scope}.big}} }}}}"):
        assert msgspec.json.decode(msgspec.json.encode(evaluate(template, values))) == {"big": ["data"], "small": 1}


def test_inline_data_is_used_even_if_it_was_also_stored():
    view = OutputView(Outcome(status="ok", data={"n": 1}, ref=REFERENCE))
    assert evaluate("{{ output.data.n }}{{ output.n }}", {"output": view}) == "11"


def test_a_stored_payload_without_resolve_raises_needs_payload():
    for template in ("{{ output.data.rows }}", "{{ output.rows }}", "{{ fetch.rows }}", "{{ fetch }}", "{{ output }}"):
        with pytest.raises(NeedsPayload) as caught:
            evaluate(template, names(stored()))
        assert caught.value.reference == REFERENCE
    assert evaluate("{{ output.status }}{{ output.error is defined }}", names(stored())) == "okFalse"


def test_extracts_are_read_instead_of_a_stored_payload():
    payload = {"count": 3, "rows": [{"id": 1}], "page": {"next": 2, "size": 10}}
    kept = extract(ok(payload), ["data.count", "data.page.next", "rows.0.id", "data.nope", "data"])
    assert kept == {KEYS: ["count", "rows", "page"], "data.count": 3, "data.page.next": 2, "rows.0.id": 1}
    scope = names(stored(extracts=kept))
    assert evaluate("{{ output.data.count }}{{ output.count }}{{ fetch.count }}{{ fetch.data.count }}", scope) == "3333"
    assert evaluate("{{ output.data.page.next + fetch.page.next }}", scope) == 4
    assert evaluate("{{ fetch.rows[0].id }}", scope) == 1
    assert evaluate("{{ fetch.status }}", scope) == "ok"
    assert evaluate("{{ fetch.absent is defined }}", scope) is False
    with pytest.raises(NeedsPayload):
        evaluate("{{ output.data.page.size }}", scope)
    with pytest.raises(NeedsPayload):
        evaluate("{{ fetch.rows }}", scope)


def test_extracts_omit_keys_that_output_and_result_read_differently():
    kept = extract(ok({"data": {"x": 1}, "x": 2}), ["data.x", "x"])
    assert "data.x" not in kept
    assert kept["x"] == 2


# ── plain data ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ((1, (2,)), [1, [2]]),
        (range(3), [0, 1, 2]),
        ({"b", "a"}, ["a", "b"]),
        ({1: "a", None: "b", False: "c"}, {"1": "a", "null": "b", "false": "c"}),
        (datetime(2026, 3, 1, 12, tzinfo=UTC), "2026-03-01T12:00:00+00:00"),
        (date(2026, 3, 1), "2026-03-01"),
        (Decimal("1.50"), 1.5),
        (Decimal("3"), 3),
        ({"a": [ResultView(ok({"n": 1}))]}, {"a": [{"n": 1}]}),
        ({"a": {"b": 1}.items()}, {"a": [["b", 1]]}),
        (REFERENCE, plain(REFERENCE)),
    ],
)
def test_plain_makes_json_data(value, data):
    assert plain(value) == data


def test_bytes_and_functions_are_not_data():
    with pytest.raises(TemplateError, match="b64encode"):
        plain(b"x")
    with pytest.raises(TemplateError, match="is not data"):
        evaluate("{{ range }}", {})
