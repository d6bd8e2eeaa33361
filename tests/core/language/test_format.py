"""The formatter: one layout, the same meaning, every comment.

The expected results of `format/*.yaml` are in `.out` files; `NOETL_GOLDEN=write` rewrites them.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import msgspec
import pytest
import yaml
from dsl_kinds import SPECS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.core.language.compile import compile_playbook
from noetl.core.language.rewrite.format import format_text

HERE = Path(__file__).parent
CASES = sorted((HERE / "format").glob("*.yaml"))
CORPUS = [
    path.read_text(encoding="utf-8")
    for folder in ("dsl/ok", "acceptance", "playbooks", "../examples")
    for path in sorted((HERE.parents[1] / folder).rglob("*.yaml"))
]


def meaning(text: str):
    result = compile_playbook(text, file="f", specs=SPECS)
    if result.playbook is None:
        return [(one.code, one.message) for one in result.diagnostics if one.severity == "error"]
    return msgspec.structs.replace(result.playbook, locations={}, digest="", surface="canonical")


def comments(text: str) -> list[str]:
    return re.findall(r"(?m)(?:^|\s)(#[^\n\r]*?)[ \t\r]*$", text)


def examine(text: str) -> str:
    formatted = format_text(text, SPECS)
    assert format_text(formatted, SPECS) == formatted
    assert meaning(formatted) == meaning(text)
    assert comments(formatted) == comments(text)
    return formatted


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_result_matches_the_golden_file(path):
    text = path.read_bytes().decode("utf-8-sig")
    formatted = examine(text)
    out = path.with_suffix(".out")
    if os.environ.get("NOETL_GOLDEN") == "write":
        out.write_text(formatted, encoding="utf-8")
    assert formatted == out.read_text(encoding="utf-8")


def test_the_corpus_keeps_its_meaning_and_its_comments():
    for text in CORPUS:
        examine(text)


def test_canonical_playbooks_in_canonical_layout_do_not_change():
    for path in sorted((HERE.parents[1] / "acceptance" / "canonical").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        assert format_text(text, SPECS) == text


def untidy(text: str, rng: random.Random) -> str:
    """The same playbook in another layout: wider indentation, white space at ends, other line ends."""
    wide = rng.choice([1, 2, 3])
    lines = []
    for line in text.split("\n"):
        bare = line.lstrip(" ")
        lines.append(" " * ((len(line) - len(bare)) * wide) + bare)
    text = "\n".join(lines) + "\n" * rng.randrange(3)
    return text.replace("\n", "\r\n") if rng.random() < 0.3 else text


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(CORPUS), st.integers(0, 2**32))
def test_another_layout_of_a_playbook_keeps_its_meaning(text, seed):
    examine(untidy(text, random.Random(seed)))


keys = st.sampled_from(["ctx", "step", "iter", "a", "b", "ctx.c", "step.d"])
leaves = st.sampled_from(["{{ workload.x }}", "x", 1, None, True, "a: b", "#no", "l1\nl2\n", "- "])
sets = st.dictionaries(keys, leaves | st.dictionaries(st.sampled_from("abc"), leaves, max_size=3), max_size=3)
rules = st.sampled_from(
    [
        {"else": None, "then": {"do": "continue"}},
        {"else": {"do": "continue"}},
        {"else": {"then": {"do": "fail"}}},
        {"when": "{{ outcome.status == 'error' }}", "then": {"do": "fail", "set_ctx": {"a": 1}}},
    ]
)
bodies = st.fixed_dictionaries(
    {"kind": st.just("noop")},
    optional={"set": sets, "spec": st.fixed_dictionaries({"policy": st.fixed_dictionaries({"rules": st.lists(rules, max_size=2)})})},
)  # fmt: skip
items = bodies | st.builds(lambda name, body: {name: body}, st.sampled_from(["t", "u-v", "name", "9"]), bodies)
steps = st.fixed_dictionaries(
    {"step": st.sampled_from("xyz")}, optional={"tool": st.lists(items, max_size=3) | items, "set": sets}
)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, max_size=3), st.sampled_from([None, False, True]), st.sampled_from([2, 4, 7]))
def test_random_playbooks_keep_their_meaning(made, flow, indent):
    document = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "r"}, "workflow": made}
    examine(yaml.safe_dump(document, sort_keys=False, default_flow_style=flow, indent=indent))


def test_invalid_yaml_is_returned_unchanged():
    assert format_text("a: [1,\n  b: }", SPECS) == "a: [1,\n  b: }"
    assert format_text("", SPECS) == ""
