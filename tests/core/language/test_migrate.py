"""Migration of v10: canonical syntax, the same meaning, every comment; inexact translations are marked.

The expected results of `migrate/*.yaml` are in `.out` files; `NOETL_GOLDEN=write` rewrites them.
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

from noetl.core.language.compile import compile_playbook
from noetl.core.language.rewrite.migrate.v10_to_canonical import COMMENT_PREFIX, migrate
from noetl.core.model.outcome import Outcome
from noetl.core.templates.template import compile_value
from noetl.core.templates.views import OutputView

HERE = Path(__file__).parent
CASES = sorted((HERE / "migrate").glob("*.yaml"))
V10 = [*sorted((HERE.parents[1] / "acceptance" / "v10").glob("*.yaml")), *sorted((HERE / "ok").glob("v10_*.yaml"))]
CANONICAL = sorted((HERE.parents[1] / "acceptance" / "canonical").glob("*.yaml"))


def comments(text: str) -> list[str]:
    return [found for found in re.findall(r"(?m)(?:^|\s)(#[^\n]*?)[ \t]*$", text) if COMMENT_PREFIX not in found]


def canonical(value):
    """A model as data, v10's names in templates read as canonical ones; places aside."""
    if isinstance(value, dict):
        data = {
            key: canonical(inner) for key, inner in value.items() if key not in ("path", "places", "digest", "surface")
        }
        if "exports" in data:  # what v10 means by `result.data` is asked for by both its names
            data["exports"] = [each for each in data["exports"] if not each.startswith("data.data")]
        return data
    if isinstance(value, list | tuple):
        return [canonical(inner) for inner in value]
    if isinstance(value, str):
        value = re.sub(r"\(output\.data\.data(\S*) \| default\(output\.data\1\)\)", r"output.data\1", value)
        value = re.sub(r"\boutcome\b", "output", value)
        value = re.sub(r"\boutput(\.result\b|\['result'\])(\.data\b)?", "output.data", value)
        value = re.sub(r"\boutput\b(?!\s*[.\[])", "output.data", value)  # a result as a whole
        return re.sub(r"\bargs\b(?=[.\[])", "input", value)
    return value


def model(text: str):
    result = compile_playbook(text, file="f", specs=SPECS)
    assert result.playbook is not None, result.diagnostics
    return canonical(msgspec.to_builtins(msgspec.structs.replace(result.playbook, file="")))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_result_matches_the_golden_file(path):
    text = path.read_text(encoding="utf-8")
    made = migrate(text, SPECS)
    expected = made.text + "".join(f"# {note.line}: {note.message}\n" for note in made.notes)
    out = path.with_suffix(".out")
    if os.environ.get("NOETL_GOLDEN") == "write":
        out.write_text(expected, encoding="utf-8")
    assert expected == out.read_text(encoding="utf-8")
    assert comments(made.text) == comments(text)


@pytest.mark.parametrize("path", [*V10, *CASES], ids=lambda path: path.stem)
def test_no_v10_syntax_is_left_and_a_second_migration_changes_nothing(path):
    made = migrate(path.read_text(encoding="utf-8"), SPECS)
    found = compile_playbook(made.text, file="f", specs=SPECS, strict=True)
    assert not [one.code for one in found.diagnostics if one.code.startswith("v10-")]
    assert found.playbook is not None
    assert found.playbook.surface == "canonical"
    assert migrate(made.text, SPECS).text == made.text


@pytest.mark.parametrize("path", V10, ids=lambda path: path.stem)
def test_the_model_is_the_same_except_for_token_arguments(path):
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
def test_canonical_text_is_returned_unchanged(path):
    text = path.read_text(encoding="utf-8")
    assert migrate(text, SPECS) == (text, ())


def test_line_ends_stay():
    text = V10[0].read_text(encoding="utf-8").replace("\n", "\r\n")
    made = migrate(text, SPECS).text
    assert made.count("\r\n") == made.count("\n") > 10


@pytest.mark.parametrize("keyword", ["while", "until"])
def test_an_unnamed_while_or_until_is_not_a_labelled_task(keyword):
    text = f"""apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: p}}
workflow:
  - step: start
    args: {{a: 1}}
    tool:
      - {keyword}:
          when: "{{{{ ctx.n | default(0) < 3 }}}}"
          tool:
            - work: {{kind: noop, set: {{ctx.n: 3}}}}
"""
    made = migrate(text, SPECS)
    assert made.notes == ()
    assert f"- {keyword}:\n" in made.text and "- {name: work, kind: noop" in made.text


def test_a_value_that_only_some_arcs_pass_is_marked():
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
    assert f"  # {COMMENT_PREFIX} only some arcs set `input.why`" in made.text
    assert 'why: "{{ ctx.why | default(none) }}"' in made.text


HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {x: 1, rows: [1, 2]}\n"


@pytest.mark.parametrize(
    "payload",
    [
        {"data": {"n": 1}},
        {"n": 2},
        {"data": None, "n": 3},
        {"data": [5]},
        [6],
        "text",
        None,
        {"data": {"data": {"n": 7}}},
    ],
)
@pytest.mark.parametrize(
    "read",
    [
        "outcome.result.data",
        "outcome['result'].data.n | default('none')",
        "outcome.result.data['n'] is defined",
        "outcome.result.data.data.n | default(0)",
        "outcome.result | default(0)",
    ],
)
def test_the_payload_of_v10_is_read_after_migration(payload, read):
    text = HEAD + "workflow:\n- step: start\n  tool:\n  - t:\n      kind: http\n      url: u\n"
    rules = f'- else: {{then: {{do: continue, set_ctx: {{v: "{{{{ {read} }}}}"}}}}}}'
    made = migrate(f"{text}      spec: {{policy: {{rules: [{rules[2:]}]}}}}\n", SPECS)
    assert made.notes == ()
    (rule,) = compile_playbook(made.text, file="f", specs=SPECS).playbook.steps[0].tasks[0].rules
    view = OutputView(Outcome("ok", data=payload))
    old = compile_value(f"{{{{ {read} }}}}").evaluate({"outcome": view})
    assert "outcome" not in rule.then.assignments[0].value
    assert compile_value(rule.then.assignments[0].value).evaluate({"output": view}) == old


@pytest.mark.parametrize("kind", ["postgres", "http"])
def test_a_payload_without_a_data_key_is_read_directly(kind):
    field = "command: c" if kind == "postgres" else "url: u"
    text = f'{HEAD}workflow:\n- step: start\n  tool: {{kind: {kind}, {field}}}\n  next: {{arcs: [{{step: start, when: "{{{{ outcome.result.data.n }}}}"}}]}}\n'
    expected = "output.data.n" if kind == "postgres" else "(output.data.data.n | default(output.data.n))"
    assert f'when: "{{{{ {expected} }}}}"' in migrate(text, SPECS).text


def test_a_migration_comment_is_written_above_a_multi_line_value():
    text = f"""{HEAD}workflow:
- step: start
  tool:
  - t: {{kind: noop, input: {{note: "two
      lines"}}, args: {{more: 'and
      these'}}}}
"""
    made = migrate(text, SPECS)
    assert model(made.text) == model(text)
    assert made.text.count(f"      # {COMMENT_PREFIX} both `args` and `input`") == 1
    assert len(made.notes) == 2  # the second is strict validation's: `args` is still there
    again = migrate(made.text, SPECS)
    assert again.text == made.text


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
    assert made.notes == ()
    assert "set_" not in made.text


# --- whole playbooks ----------------------------------------------------------------------------

READS = [
    "outcome.status == 'ok'", "outcome.result.n > 1", "outcome['result'].n", "outcome.error.kind == 'timeout'", "outcome.http.status",
    "outcome.result.data.n | default(0)", "args.n", "args['n'] + 1", "ctx.seen | default(0)", "workload.x", "_attempt < 3",
    "outcome.result is defined and args.n", "[outcome.result.n, 'outcome.result', args.n]",
]  # fmt: skip
STYLES = ['"{{{{ {0} }}}}"', "'{{{{ {1} }}}}'", "'{{{{{1}}}}} and {{{{ workload.x }}}}'", ">-\n{pad}{{{{ {0} }}}}"]


def written(draw: st.DrawFn, where: str = "worker", *, flow: bool = False, pad: int = 40) -> str:
    """One template in some style of quoting."""
    reads = [
        each
        for each in READS
        if where == "worker" or (not each.startswith("_") and ("outcome" in each) <= (where == "arc"))
    ]
    text = draw(st.sampled_from(reads))
    style = draw(st.sampled_from(STYLES[:3] if flow else STYLES))
    return style.format(text.replace('"', "'"), text.replace("'", "''"), pad=" " * pad)


@st.composite
def v10_tasks(draw: st.DrawFn, number: int, looping: bool) -> str:
    """One task in v10 syntax: labelled or named, in block or in flow, with rules that set."""
    label, pad = f"t{number}", "      "
    kind = draw(st.sampled_from(["kind: noop", "kind: http, url: u", "kind: postgres, command: c"]))
    if draw(st.booleans()):
        args = f", args: {{n: {written(draw, flow=True)}, 'odd key': 1}}" if draw(st.booleans()) else ""
        inner = f"{kind}{args}"
        return f"    - {label}: {{{inner}}}\n" if draw(st.booleans()) else f"    - {{name: {label}, {inner}}}\n"
    labelled = draw(st.booleans())
    lines = [f"    - {label}:   # task {number}" if labelled else f"    - name: {label}   # task {number}"]
    pad += "  " * labelled
    lines += [f"{pad}{each}" for each in kind.split(", ")]
    if draw(st.booleans()):
        lines += [f"{pad}args:", f"{pad}  # what it gets", f"{pad}  n: {written(draw)}"]
    rules = []
    for _ in range(draw(st.integers(0, 2))):
        do = draw(st.sampled_from(["do: continue", "do: break", "do: retry, attempts: 2", "do: fail"]))
        sets = ""
        if draw(st.booleans()):
            sets += f", set_ctx: {{seen: {written(draw, flow=True)}}}"
        if looping and draw(st.booleans()):
            sets += f", set_iter: {{last: {written(draw, flow=True)}, b.c: 2}}"
        rules.append(f"{pad}    - {{when: {written(draw, flow=True)}, then: {{{do}{sets}}}}}")
    if rules:
        block = f"{pad}    - else:\n{pad}        then:\n{pad}          do: continue\n"
        if draw(st.booleans()):
            block += f"{pad}          set_ctx:\n{pad}            # kept\n{pad}            seen: {written(draw)}\n"
        lines += [f"{pad}spec:", f"{pad}  policy:", f"{pad}    rules:", *rules, block.rstrip("\n")]
    return "\n".join(lines) + "\n"


@st.composite
def v10_playbooks(draw: st.DrawFn) -> str:
    """A whole playbook in v10 syntax, with comments and blank lines."""
    count = draw(st.integers(1, 3))
    text = HEAD + "# the steps\nworkflow:\n"
    for number in range(count):
        looping = draw(st.booleans())
        text += f"- step: s{number}   # step {number}\n"
        if draw(st.booleans()):
            text += f"  args:\n    n: {written(draw, 'input')}\n\n"
        else:
            text += "  args: {n: 1}\n"
        if looping:
            text += '  loop: {in: "{{ workload.rows }}", iterator: row}\n'
        text += "  tool:\n" + "".join(draw(v10_tasks(each, looping)) for each in range(draw(st.integers(1, 2))))
        if number + 1 < count:
            arc = f"{{step: s{number + 1}, when: {written(draw, 'arc', flow=True)}}}"
            text += f"  next:\n    # on\n    arcs:\n    - {arc}\n    - {{step: s{count - 1}}}\n"
    return text


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(v10_playbooks())
def test_whole_playbooks_keep_their_model_and_their_comments(text):
    made = migrate(text, SPECS)
    assert made.notes == ()
    assert model(made.text) == model(text)
    assert comments(made.text) == comments(text)
    result = compile_playbook(made.text, file="f", specs=SPECS, strict=True)
    assert result.playbook is not None and result.playbook.surface == "canonical"
    assert migrate(made.text, SPECS) == (made.text, ())
