"""The JSON Schema, the reference page and completion agree with the grammar."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from dsl_kinds import SPECS

from noetl.core.language.editor.autocomplete import complete
from noetl.core.language.reference.grammar_page import grammar_page
from noetl.core.language.reference.json_schema import json_schema
from noetl.core.language.source.nodes import data_of
from noetl.core.language.source.yaml_source import read_source
from noetl.core.language.syntax.grammar import SHAPES
from noetl.tools import registry as tools

HERE = Path(__file__).parent
VALIDATOR = jsonschema.Draft7Validator(json_schema(SPECS))


def problems(path: Path) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(data_of(read_source(path.read_bytes()).root))]


def test_the_schema_is_a_schema_with_the_kinds_of_this_installation_too():
    jsonschema.Draft7Validator.check_schema(json_schema(SPECS))
    schema = json_schema(tools.specs())
    jsonschema.Draft7Validator.check_schema(schema)
    kinds = schema["definitions"]["task"]["properties"]["kind"]["enum"]
    assert {"http", "noop", "python", "snowflake"} <= set(kinds)


@pytest.mark.parametrize("path", sorted((HERE / "ok").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_schema_accepts_every_correct_playbook(path):
    assert problems(path) == []


@pytest.mark.parametrize(
    "code",
    ["unknown-key", "missing-key", "wrong-value", "wrong-type", "root-vars", "not-a-playbook", "next-shape", "policy-shape",
     "legacy-step-when", "legacy-next-list", "legacy-loop", "control-outside-task", "rule-without-do", "bad-name",
     "unknown-kind"],
)  # fmt: skip
def test_the_schema_rejects_wrong_shapes(code):
    assert problems(HERE / "err" / f"{code}.yaml") != []


def test_every_key_of_the_grammar_is_described():
    for shape in SHAPES.values():
        assert shape.doc and shape.noun
        for key, known in shape.keys.items():
            assert known.doc or known.state != "canonical", f"{shape.name}.{key}"
            assert known.state not in ("v10", "accepted") or known.instead, f"{shape.name}.{key}"
            assert not known.shape or known.shape in SHAPES


def test_the_reference_page_of_the_grammar_is_up_to_date():
    page = HERE.parents[2] / "docs" / "reference" / "grammar.md"
    assert page.read_text("utf-8") == grammar_page(), "run `make docs`"


TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata:
  name: x
workflow:
  - step: a
    tool:
      - name: fetch
        kind: http
        @1
        spec:
          policy:
            rules:
              - when: true
                then:
                  do: @2
                  @3
    @4
    next:
      arcs:
        - step: @5
          @6
  - step: b
    loop:
      spec:
        mode: @7
    tool: { kind: noop }
@8
"""


@pytest.mark.parametrize(
    ("mark", "some", "none"),
    [
        ("@1", {"url", "method", "input", "set"}, {"name", "kind", "endpoint", "spec"}),
        ("@2", {"retry", "jump", "skip", "fail"}, {"attempts"}),
        ("@3", {"attempts", "to", "set"}, {"do", "set_ctx"}),
        ("@4", {"set", "loop", "input", "spec", "output"}, {"tool", "next", "args"}),
        ("@5", {"a", "b"}, {"start"}),
        ("@6", {"when", "set"}, {"step", "args"}),
        ("@7", {"sequential", "parallel"}, set()),
        ("@8", {"keychain", "workload", "workbook", "executor"}, {"kind", "vars"}),
    ],
)
def test_completion_offers_what_is_valid_at_a_position(mark, some, none):
    text = TEXT
    for other, filled in {"@2": "jump", "@5": "b", "@7": "parallel"}.items():
        text = text if other == mark else text.replace(other, filled)
    lines = [each for each in text.split("\n") if "@" not in each or mark in each]
    row = next(number for number, each in enumerate(lines) if mark in each)
    column = lines[row].index(mark)
    text = "\n".join(lines).replace(mark, "")
    words = {found.word for found in complete(text, row + 1, column + 1, SPECS)[1]}
    assert some <= words
    assert not none & words


def test_completion_filters_by_the_typed_text_and_never_raises():
    text = "apiVersion: noetl.io/v2\nkind: Playbook\nwor"
    assert {found.word for found in complete(text, 3, 4, SPECS)[1]} == {"workload", "workflow", "workbook"}
    for line in range(1, 6):
        for column in range(1, 8):
            complete("a: [\n\t{{\n - b:", line, column, SPECS)
