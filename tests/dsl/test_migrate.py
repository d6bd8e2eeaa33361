"""Migration of v10: canonical words, the same meaning, every comment; what is not exact is marked.

`migrate/*.yaml` come out as the `.out` beside them says; `NOETL_GOLDEN=write` writes it anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
from dsl_kinds import SPECS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.dsl.compile import compile_playbook
from noetl.dsl.migrate.v10_to_canonical import MARK, migrate

HERE = Path(__file__).parent
CASES = sorted((HERE / "migrate").glob("*.yaml"))
V10 = [*sorted((HERE.parent / "acceptance" / "v10").glob("*.yaml")), *sorted((HERE / "ok").glob("v10_*.yaml"))]
CANONICAL = sorted((HERE.parent / "acceptance" / "canonical").glob("*.yaml"))


def comments(text: str) -> list[str]:
    return [found for found in re.findall(r"(?m)(?:^|\s)(#[^\n]*?)[ \t]*$", text) if MARK not in found]


def words(value):
    """A model as data, v10's names in templates read as canonical ones; places aside."""
    if isinstance(value, dict):
        return {key: words(inner) for key, inner in value.items() if key not in ("path", "places", "digest", "surface")}
    if isinstance(value, list | tuple):
        return [words(inner) for inner in value]
    if isinstance(value, str):
        value = re.sub(r"\boutcome\b", "output", value)
        value = re.sub(r"\boutput(\.result\b|\['result'\])(\.data\b)?", "output.data", value)
        return re.sub(r"\bargs\b(?=\.)", "input", value)
    return value


def model(text: str):
    result = compile_playbook(text, file="f", specs=SPECS)
    assert result.playbook is not None, result.diagnostics
    return words(msgspec.to_builtins(msgspec.structs.replace(result.playbook, file="")))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_text_comes_out_as_it_should(path):
    text = path.read_text(encoding="utf-8")
    made = migrate(text, SPECS)
    said = made.text + "".join(f"# {note.line}: {note.message}\n" for note in made.notes)
    out = path.with_suffix(".out")
    if os.environ.get("NOETL_GOLDEN") == "write":
        out.write_text(said, encoding="utf-8")
    assert said == out.read_text(encoding="utf-8")
    assert comments(made.text) == comments(text)


@pytest.mark.parametrize("path", [*V10, *CASES], ids=lambda path: path.stem)
def test_nothing_of_v10_is_left_and_another_time_changes_nothing(path):
    made = migrate(path.read_text(encoding="utf-8"), SPECS)
    found = compile_playbook(made.text, file="f", specs=SPECS, strict=True)
    assert not [one.code for one in found.diagnostics if one.code.startswith("v10-")]
    assert found.playbook is not None
    assert found.playbook.surface == "canonical"
    assert migrate(made.text, SPECS).text == made.text


@pytest.mark.parametrize("path", V10, ids=lambda path: path.stem)
def test_the_model_is_the_same_but_for_what_travelled_with_tokens(path):
    text = path.read_text(encoding="utf-8")
    before, after = model(text), model(migrate(text, SPECS).text)
    for one, other in zip(before["steps"], after["steps"], strict=True):
        carried = [arc.get("assignments") for arc in one["router"].get("arcs", ())]
        for arc in (*one["router"].get("arcs", ()), *other["router"].get("arcs", ())):
            arc.pop("assignments", None)  # `args` there, `set` here: acceptance tests run both
        if any(carried) or "input" in other:
            one.pop("input", None), other.pop("input", None)
        # Before a step's `input` is made, what the token carried is read from `ctx`.
        gate, other_gate = str(one.pop("admission")), str(other.pop("admission"))
        assert other_gate == gate.replace("input.", "ctx.")
    assert after == before


@pytest.mark.parametrize("path", CANONICAL, ids=lambda path: path.stem)
def test_canonical_text_comes_out_as_it_is(path):
    text = path.read_text(encoding="utf-8")
    assert migrate(text, SPECS) == (text, ())


def test_line_ends_stay():
    text = V10[0].read_text(encoding="utf-8").replace("\n", "\r\n")
    made = migrate(text, SPECS).text
    assert made.count("\r\n") == made.count("\n") > 10


def test_what_comes_along_some_arcs_only_is_marked():
    text = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: start
    tool: {kind: noop}
    next:
      arcs:
        - {step: end, when: "{{ workload.x }}", args: {why: 1}}
        - {step: end}
  - step: end
    tool: {kind: http, url: "{{ args.why }}"}
"""
    made = migrate(text, SPECS)
    assert [note.line for note in made.notes] == [11]
    assert f"  # {MARK} `input.why` comes along some arcs only" in made.text
    assert 'why: "{{ ctx.why | default(none) }}"' in made.text


names = st.sampled_from(["a", "b", "c d", "e.f"])
values = st.sampled_from(
    ['"{{ outcome.result.x }}"', "'{{ outcome.status }} {{ outcome.meta.y }}'", "1", "[x, {y: z}]"]
)
flows = st.dictionaries(names, values, min_size=1, max_size=2)


def flow(entries: dict[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in entries.items()) + "}"


def block(entries: dict[str, str], indent: int) -> str:
    return "".join(f"\n{' ' * indent}{key}: {value}" for key, value in entries.items())


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(flows, flows, st.booleans(), st.booleans(), st.booleans())
def test_set_ctx_and_set_iter_become_one_set(ctx, iter_, flow_one, flow_two, labelled):
    task = "- t:\n        kind: noop\n        " if labelled else "- name: t\n        kind: noop\n        "
    one, two = (flow(entries) if flat else block(entries, 16) for entries, flat in ((ctx, flow_one), (iter_, flow_two)))
    rule = f"- else:\n            then:\n              do: continue\n              set_ctx: {one}\n              set_iter: {two}\n"
    text = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n  - step: start\n"
        f"    loop: {{in: [1], iterator: i}}\n    tool:\n      {task}spec:\n         policy:\n          rules:\n          {rule}"
    )
    before = model(text)
    made = migrate(text, SPECS)
    assert model(made.text) == before
    assert bool(made.notes) == (flow_one != flow_two)
