"""Random playbooks of the older dialects, in random styles: what `fmt` and `migrate` write keeps meaning and comments.

`NOETL_EXAMPLES=5000` asks for more examples, and for new ones.
"""

from __future__ import annotations

import random
import re
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_playbooks import random_playbook
from test_properties import examples

from noetl.core.language.compile import compile_playbook
from noetl.core.language.rewrite.concrete_syntax import parse
from noetl.core.language.rewrite.format import format_text, without_line_ends
from noetl.core.language.rewrite.migrate.to_canonical import migrate
from noetl.core.model.tool import Field, ToolSpec
from noetl.tools import registry as tools

SPECS = tools.specs()


def shape(value, inside=""):
    """A model without places and names in templates, and without what the arguments of tokens become."""
    if isinstance(value, msgspec.Struct):
        names = [name for name in value.__struct_fields__ if name not in ("path", "locations", "digest", "surface")]
        made = {name: shape(getattr(value, name), type(value).__name__) for name in names}
        made.pop("extensions", None)
        if type(value).__name__ == "Executor":
            made["spec"].pop("extensions", None)
        for name in {"Step": ("input", "exports"), "Arc": ("assignments",)}.get(type(value).__name__, ()):
            made.pop(name)
        return made
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shape(inner) for inner in value]
    return re.sub(r"\{\{.*?\}\}", "{{}}", value, flags=re.S) if isinstance(value, str) else value


def comments(text: str) -> Counter[str]:
    return Counter(each.rstrip() for each in parse(without_line_ends(text)[0]).comments)


def dressed(seed: int) -> tuple[str, Counter[str]]:
    """A random playbook as an editor may save it, and its comments: line ends, blanks, a byte order mark."""
    text, written = random_playbook(seed)
    rng = random.Random(seed)
    lines, more = text.split("\n"), []
    if rng.random() < 0.4:
        lines = [line + rng.choice(["", "", "  ", "\t"]) if re.search(r"[\w}\]]$", line) else line for line in lines]
    if rng.random() < 0.3:
        more = ["# é 漢字 🎈 - [x]: {y}"]
        lines += ["", *more, ""]
    ends = "\r\n" if rng.random() < 0.4 else "\n"
    made = ends.join(lines) if rng.random() < 0.8 else ends.join(lines).rstrip("\r\n")
    return ("\ufeff" if rng.random() < 0.2 else "") + made, Counter(each.rstrip() for each in [*written, *more])


@examples(60)
@given(st.integers(0, 2**32))
def test_a_formatted_playbook_is_the_same_playbook(seed):
    text, written = dressed(seed)
    formatted = format_text(text, SPECS)
    assert comments(text) == comments(formatted) == written
    assert format_text(formatted, SPECS) == formatted
    before, after = (compile_playbook(each, file="", specs=SPECS, legacy=True) for each in (text, formatted))
    assert (before.playbook is None) == (after.playbook is None)
    if before.playbook is not None:
        assert shape(after.playbook) == shape(before.playbook)


@examples(80)
@given(st.integers(0, 2**32))
def test_a_migrated_playbook_is_canonical_and_does_the_same(seed):
    text, written = dressed(seed)
    before = compile_playbook(text, file="", specs=SPECS, legacy=True)
    if before.playbook is None:
        return
    made = migrate(text, SPECS)
    assert "the file was not changed" not in str(made.notes)
    after = compile_playbook(made.text, file="", specs=SPECS, strict=not made.notes)
    assert after.playbook is not None, after.diagnostics
    assert shape(after.playbook) == shape(before.playbook)
    assert written <= comments(made.text)
    if made.text != text:
        assert format_text(made.text, SPECS) == made.text
    assert migrate(made.text, SPECS).text == made.text


def test_an_alias_that_two_places_qualify_differently_stays():
    text = (
        f"{HEAD}workload: {{x: 1}}\nworkflow:\n  - step: a\n    loop: {{in: [1], iterator: x}}\n    tool:\n"
        '      - {name: t, kind: noop, input: &i {v: "{{ x }}"}}\n    next: {arcs: [{step: b}]}\n'
        "  - {step: b, tool: {kind: noop, input: *i}}\n"
    )
    assert migrate(text, SPECS) == (text, ())


HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


@pytest.mark.parametrize(
    "tasks",
    [
        "      - a: &t {kind: noop}\n      - b: *t   # last line\n",
        "      - a: &t\n          kind: noop   # anchored\n      - b: *t\n",
        "      - a: {kind: http, url: http://u, input: &i {n: 1}}\n      - b:\n          kind: noop\n          input: *i   # last\n",
        "      - a: &t {kind: noop}\n      - b:\n          <<: *t   # merged\n          input: {n: 1}\n",
        "      - &t\n        a: {kind: noop}\n",
        "      -\n        # above the label\n        a:   # beside it\n          # below it\n          kind: noop\n          # at its end\n",
        "      - 'a': {kind: noop, # one\n              input: {n: 1} # two\n              # three\n              }   # four\n",
    ],
)
def test_a_labelled_task_gets_a_name(tasks):
    text = f"{HEAD}workflow:\n  - step: s\n    tool:\n{tasks}"
    made = migrate(text, SPECS)
    assert made.notes == ()
    after = compile_playbook(made.text, file="", specs=SPECS, strict=True)
    assert after.playbook is not None and after.playbook.surface == "canonical", made.text
    assert shape(after.playbook) == shape(compile_playbook(text, file="", specs=SPECS).playbook)
    assert comments(made.text) == comments(text)
    assert format_text(made.text, SPECS) == made.text
    assert "name: a" in made.text or "name: 'a'" in made.text


def migrated(body: str) -> str:
    text = HEAD + body
    made = migrate(text, SPECS)
    assert made.notes == (), made.notes
    assert comments(made.text) == comments(text)
    assert compile_playbook(made.text, file="", specs=SPECS, strict=True).playbook is not None
    return made.text.removeprefix(HEAD)


def test_flow_and_block_sets_are_joined_with_their_comments():
    made = migrated(
        """workflow:
  - step: s
    loop: {in: [1], iterator: i}
    tool:
      - t:
          kind: noop
          spec:
            policy:
              rules:
                - else:
                    then:
                      do: continue
                      # in iter
                      set_iter:   # beside
                        # inside
                        b: 2
                      set_ctx: {a: 1}   # flow
                      # own
                      set: {ctx.c: 3}
"""
    )
    assert made.count("set:") == 1
    entries = re.findall(r"(ctx|iter)\.(\w): (\d)", made)
    assert entries == [("ctx", "a", "1"), ("iter", "b", "2"), ("ctx", "c", "3")]


def test_bare_names_are_qualified_where_only_one_thing_can_be_meant():
    made = migrated(
        """workload: {url: u, both: 1, rows: [1]}
workflow:
  - step: s
    loop: {in: "{{ rows }}", iterator: row}
    set: {plain: "{{ output.data }}", ctx.both: 2}
    tool:
      - {name: t, kind: http, url: "{{ url }}/{{ row.id }}", body: '{{ both }}'}
    next: {arcs: [{step: end, when: "{{ plain and t is not defined }}"}]}
  - {step: end, tool: {kind: noop, input: {a: "{{ s.x }}", b: "{{ 'url' }} {% set url = 1 %}{{ url }}"}}}
"""
    )
    assert 'in: "{{ workload.rows }}"' in made
    assert '"{{ workload.url }}/{{ iter.row.id }}"' in made
    assert "'{{ both }}'" in made  # ctx.both or workload.both
    assert "set: {ctx.plain: " in made and "{{ ctx.plain and t" in made
    assert "{{ s.x }}" in made and "{{ 'url' }} {% set url = 1 %}{{ url }}" in made


def test_the_legacy_extension_is_removed_with_what_is_empty_without_it():
    step = "workflow:\n  - step: s\n    result: r\n    tool: {kind: noop}\n"
    made = migrated(f"executor:\n  # why\n  spec:\n    extensions: [legacy]   # old\n{step}")
    assert made.startswith("# why\n# old\nworkflow:\n")
    made = migrated(f"executor:\n  profile: local\n  spec: {{extensions: [legacy], entry_step: s}}\n{step}")
    assert "  spec: {entry_step: s}\n" in made


def test_the_name_of_a_block_stays_first_and_inputs_and_results_are_kept():
    made = migrated(
        """workbook:
  - name: b   # its name
    desc: d
    tool: {kind: noop, spec: {input: {a: 1}}}
workflow:
  - step: s
    tool:
      kind: python
      input: {b: 2}
      spec:
        input: {a: 1}
        code: result = a
  - step: end
    tool: {kind: noop, result: {ok: true}}
"""
    )
    assert "  - name: b   # its name\n    desc: d\n    tool:\n      kind: noop\n      input: {a: 1}\n" in made
    assert compile_playbook(HEAD + made, file="", specs=SPECS).playbook.steps[0].tasks[0].input.keys() >= {"a", "b"}
    assert "returns: {ok: true}" in made


def test_what_cannot_be_rewritten_is_not_changed():
    text = f"\ufeff{HEAD}? workflow\n: - step: s\n    args: {{n: 1}}\n    tool: {{kind: noop}}".replace("\n", "\r\n")
    made = migrate(text, SPECS)
    assert made.text == text
    assert [note.line for note in made.notes] == [4]
    assert "`?`" in made.notes[0].message


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_canonical_text_is_formatted_and_an_invalid_one_is_not_touched(ends):
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t}\nworkflow:\n  - step: start\n    tool:\n"
    rules = "      kind: noop\n      spec: {policy: {rules: [{else: , then: {do: continue}}]}} # kept"
    text = (head + rules).replace("\n", ends)
    made = migrate(text, SPECS).text
    assert format_text(made, SPECS) == made != text and comments(made) == comments(text)
    assert migrate(made, SPECS).text == made
    for wrong in (rules.replace("kind", "knd"), "      - {one: {kind: noop, set_ctx: {a: 1}}}", "   - [", ""):
        assert migrate((head + wrong).replace("\n", ends), SPECS).text == (head + wrong).replace("\n", ends)


def test_blanks_after_the_comment_of_a_block_scalar_do_not_hinder_the_translation():
    made = migrated(
        "workflow:\n  - step: s\n    args:\n      n: |-  # beside it  \t\n        text\n    tool: {kind: noop}\n"
    )
    assert (
        made == "workflow:\n  - step: s\n    input:\n      n: |-  # beside it\n        text\n    tool: {kind: noop}\n"
    )


def test_names_have_letters_of_any_alphabet():
    text = migrated("""
workload: {größe: 1}
workflow:
  - step: начало # шаг
    tool:
      - взять: {kind: noop, args: {ключ: "{{ größe }}"}} # задача
    next: {arcs: [{step: 数, when: "{{ начало is defined }}"}]}
  - {step: 数, tool: {kind: noop}}
""")
    assert '- {name: взять, kind: noop, input: {ключ: "{{ workload.größe }}"}} # задача' in text


@pytest.mark.parametrize("kind", ["container", "mine"])
def test_a_list_of_arguments_is_a_parameter_of_the_kind(kind):
    """`container` is not installed; `mine` declares `args`."""
    specs = {**SPECS, "mine": ToolSpec("mine", "A tool.", fields={"args": Field(), "image": Field()})}
    text = (
        HEAD + f"workflow:\n  - step: start\n    tool: {{kind: {kind}, image: a, args: [x, 1], input: {{image: b}}}}\n"
    )
    made = compile_playbook(text, file="", specs=specs)
    assert not [one for one in made.diagnostics if one.code in ("v10-args", "wrong-type")]
    assert made.playbook.steps[0].tasks[0].input["args"] == ["x", 1]
    assert migrate(text, specs).text == text
