"""The output envelope of every kind: common fields, helpers of the kind, and known error kinds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from noetl.core.model.outcome import ERROR_KINDS, ok
from noetl.core.templates.template import compile_value
from noetl.core.templates.views import HELPERS, OutputView
from noetl.embedded import open_local
from noetl.tools import registry as tools

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t}\n"
GOES_ON = "spec: {timeout: 20, policy: {rules: [{else: {then: {do: continue}}}]}}"
# kind -> what works here without any server (if anything does), and what cannot, with the error's kind.
CASES: dict[str, tuple[str | None, str, str]] = {
    "noop": ("", "", ""),
    "http": (None, "url: 'http://127.0.0.1:1/'", "connection"),
    "postgres": (None, "auth: 'postgresql://u:p@127.0.0.1:1/d', command: select 1", "db.connection"),
    "duckdb": ("command: select 1 as a", "command: selec 1", "db.syntax"),
    "sqlite": ("command: select 1 as a", "command: selec 1", "db.syntax"),
    "python": ("code: result = 1", "code: 1/0", "python"),
    "shell": ("cmd: 'true'", "cmd: 'false'", "shell"),
    "secrets": (None, "secret: nope", "auth"),
    "playbook": (None, "path: nope", "not_found"),
    "resolve": ("action: put, data: [1]", "ref: {type: blob, locator: {path: nope}, meta: {content_type: text/plain, bytes: 1, sha256: a}}", "ref.unresolved"),
    "transfer": ("data: [{a: 1}], targets: [{kind: file, path: t.json}]", "data: 5, targets: [{kind: file, path: t.json}]", "schema"),
    "object": ("action: list, uri: .", "uri: nope.json", "not_found"),
    "nats": (None, "action: kv_get, bucket: b, key: k, url: 'nats://127.0.0.1:1'", "connection"),
    "mail": (None, "auth: {host: 127.0.0.1, port: 1, from: b@example.com}, to: a@example.com, subject: s, text: t", "connection"),
    "wait": ("for: 0.01s", "signal: never, timeout: 0.05s", "timeout"),
    "workbook": ("block: fine", "block: broken", "python"),
}  # fmt: skip


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a playbook sees of every case: run in one step, one after the other."""
    lines = []
    for kind, (works, fails, _) in CASES.items():
        for name, given in (("ok", works), ("error", fails)):
            if given is None or (name == "error" and not given):
                continue
            helpers = ", ".join(f"{one}: '{{{{ output.{one} }}}}'" for one in tools.kinds()[kind].helpers)
            seen = "status: '{{ output.status }}', ref: '{{ output.ref is defined }}', meta: '{{ output.meta }}', data: '{{ output.data }}'"
            seen += ", error: '{{ output.error | default(none) }}'" + (f", {helpers}" if helpers else "")
            lines.append(
                f"      - {{name: {kind}_{name}, kind: {kind}, {given + ', ' if given else ''}{GOES_ON}, "
                f"set: {{ctx.{kind}_{name}: {{{seen}}}}}}}"
            )
    blocks = "workbook: {fine: {tool: {kind: noop}}, broken: {tool: {kind: python, code: 1/0}}}\n"
    text = HEAD + blocks + "workflow:\n  - step: start\n    tool:\n" + "\n".join(lines) + "\n"
    home = tmp_path_factory.mktemp("home")
    path = home / "t.yaml"
    path.write_text(text)

    async def run() -> Any:
        async with await open_local(store="memory:", home=home) as engine:
            return await engine.run(str(path), timeout=60)

    result = asyncio.run(run())
    assert result.status == "success", result.error
    return dict(result.ctx)


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == set(tools.kinds())


@pytest.mark.parametrize("kind", sorted(CASES))
def test_the_envelope_is_the_same_for_every_kind(outputs: dict[str, dict[str, Any]], kind: str) -> None:
    works, fails, error_kind = CASES[kind]
    for name, expected in (("ok", works), ("error", fails or None)):
        if expected is None:
            continue
        seen = outputs[f"{kind}_{name}"]
        assert seen["status"] == name, seen
        assert {"attempt", "duration_ms", "ts"} <= set(seen["meta"]) and seen["meta"]["attempt"] == 1
        if name == "ok":
            assert seen["error"] is None
        else:
            assert seen["error"]["kind"] == error_kind in ERROR_KINDS
            assert seen["error"]["retryable"] is ERROR_KINDS[error_kind] and seen["error"]["message"]
        for helper, fields in tools.kinds()[kind].helpers.items():
            assert set(seen[helper]) == set(fields), f"{kind}: output.{helper} of an outcome that is {name}"


def test_a_helper_of_another_kind_is_quietly_absent() -> None:
    known = {helper for spec in tools.kinds().values() for helper in spec.helpers}
    assert known | {"loop"} == HELPERS
    names = {"output": OutputView(ok({"a": 1}, py={"line": None}))}
    for text, value in (
        ("{{ output.http.status in [429, 500] }}", False),
        ("{{ output.pg.code == '40001' }}", False),
        ("{{ output.http.status | default(200) }}", 200),
        ("{{ output.http is defined }}", False),
        ("{{ output.py.line }}", None),
    ):
        assert compile_value(text).evaluate(names, None) == value, text
