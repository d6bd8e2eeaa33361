"""Reading text: YAML 1.2 values, positions, and invalid files."""

from __future__ import annotations

import time

import pytest
from dsl_kinds import SPECS

from noetl.core.language.compile import compile_playbook
from noetl.core.language.source.nodes import Mapping, Scalar, Sequence, data_of
from noetl.core.language.source.scalar_offsets import locate
from noetl.core.language.source.yaml_source import read_source


def data(text: str | bytes):
    source = read_source(text)
    assert source.problems == [], source.problems
    return data_of(source.root)


def problems(text: str | bytes) -> list[tuple[str, int, int]]:
    return [
        (found.code, found.line, found.column) for found in compile_playbook(text, file="f", specs=SPECS).diagnostics
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("true", True), ("True", True), ("FALSE", False), ("on", "on"), ("yes", "yes"), ("No", "No"),
        ("off", "off"), ("y", "y"),
        ("null", None), ("~", None), ("", None), ("Null", None), ("none", "none"),
        ("12", 12), ("-12", -12), ("+7", 7), ("010", 10), ("0o17", 15), ("0x1F", 31), ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("1.e2", 100.0), ("-0.0", -0.0), ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        ("2024-01-01", "2024-01-01"), ("2024-01-01T10:00:00Z", "2024-01-01T10:00:00Z"), ("1.2.3", "1.2.3"), ("=", "="),
        ("'12'", "12"), ('"true"', "true"), ("!!str 12", "12"), ('!!int "12"', 12), ("! 12", "12"), ("!!float 3", 3.0),
        ("9223372036854775807", 9223372036854775807),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(written, meant):
    found = data(f"value: {written}\n")["value"]
    assert found == meant and type(found) is type(meant)


def test_keys_are_text_as_written():
    assert data("{1: a, true: b, on: c, 2024-01-01: d}") == {"1": "a", "true": "b", "on": "c", "2024-01-01": "d"}


def test_own_keys_take_precedence_over_merged_ones_and_earlier_merges_over_later_ones():
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 0}\nd: {<<: *a}\n"
    assert data(text)["c"] == {"x": 0, "y": 1, "z": 2}
    assert data(text)["d"] == {"x": 1, "y": 1}
    assert data("{'<<': 1}") == {"<<": 1}


def test_a_byte_order_mark_and_windows_line_ends_change_nothing():
    plain = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x}\nworkflow:\n  - step: a\n    tol: {kind: noop}\n"
    )
    for text in (
        plain,
        "\ufeff" + plain,
        plain.replace("\n", "\r\n"),
        ("\ufeff" + plain).encode(),
        plain.replace("\n", "\r"),
    ):
        assert ("unknown-key", 6, 5) in problems(text)


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("", "yaml-empty", 1, 1),
        ("# only a comment\n", "yaml-empty", 1, 1),
        ("---\n", "yaml-empty", 1, 1),
        ("- a\n", "not-a-playbook", 1, 1),
        ("just text\n", "not-a-playbook", 1, 1),
        ("a: 1\n---\nb: 2\n", "yaml-documents", 2, 1),
        ("a:\n\tb: 1\n", "yaml-syntax", 2, 1),
        ("a: b: c\n", "yaml-syntax", 1, 5),
        ("a: [1, 2\n", "yaml-syntax", 2, 1),
        ("a: 'x\n", "yaml-syntax", 1, 4),
        ("a: @x\n", "yaml-syntax", 1, 4),
        ("a: 1\n b: 2\n", "yaml-syntax", 2, 3),
        ("%YAML 1.3\n---\na: 1\n", "yaml-syntax", 1, 1),
        ('a: "\\q"\n', "yaml-syntax", 1, 5),
        ("a: \x00\n", "yaml-encoding", 1, 4),
        ("a: \x07\n", "yaml-encoding", 1, 4),
        (b"a: \xff\n", "yaml-encoding", 1, 4),
        (b"\xff\xfea\x00", "yaml-encoding", 1, 1),
        ("a: \ud800\n", "yaml-encoding", 1, 4),
        ("a: 1\nb: 2\na: 3\n", "yaml-duplicate-key", 3, 1),
        ("a: {{ x }}\n", "yaml-key", 1, 5),
        ("{[1]: 2}\n", "yaml-key", 1, 2),
        ("? \n: 1\n", "yaml-key", 1, 2),
        ("a: !thing 1\n", "yaml-tag", 1, 4),
        ("a: !!python/object:os.system {}\n", "yaml-tag", 1, 4),
        ("a: !!int x\n", "yaml-tag", 1, 4),
        ("a: *b\n", "yaml-alias", 1, 4),
        ("a: &a [*a]\n", "yaml-alias", 1, 8),
        ("a: {<<: 3}\n", "yaml-merge", 1, 9),
        ("a: .inf\n", "yaml-number", 1, 4),
        ("a: .nan\n", "yaml-number", 1, 4),
        ("a: 1e999\n", "yaml-number", 1, 4),
        ("a: 9223372036854775808\n", "yaml-number", 1, 4),
        ("a: " + "9" * 5000 + "\n", "yaml-number", 1, 4),
        ("a: " + "[" * 10_000 + "]" * 10_000 + "\n", "yaml-limit", 1, 103),
        ("a: " + "{a: " * 10_000, "yaml-limit", 1, 400),
        ("\n".join(" " * n + "a:" for n in range(3_000)), "yaml-limit", 101, 101),
        ("- " * 10_000 + "a", "yaml-limit", 1, 201),
        ("a:\n" + "- x\n" * 1_000_000, "yaml-limit", 200_001, 3),
        ("# " + "x" * 9_000_000, "yaml-limit", 1, 1),
        ("&a [" * 200 + "]" * 200, "yaml-limit", 1, 401),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_invalid_text_is_reported_with_its_position_in_bounded_time(text, code, line, column):
    began = time.process_time()
    assert (code, line, column) in problems(text)
    assert time.process_time() - began < 10


def test_alias_bombs_are_stopped_before_they_expand():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    assert problems("\n".join(lines))[0][0] == "yaml-limit"
    deep = "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 500))
    assert problems(deep)[0][0] == "yaml-limit"
    merges = "a0: &a0 {k0: 1}\n" + "\n".join(f"a{n}: &a{n} {{<<: *a{n - 1}, k{n}: 1}}" for n in range(1, 2000))
    assert problems(merges)[0][0] == "yaml-limit"


def test_a_long_text_of_many_lines_is_read_when_it_is_one_value():
    code = "\n".join("      x = 1" for _ in range(200_000))
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: long}\nworkflow:\n- step: a\n"
    text = f"{head}  tool:\n    kind: python\n    code: |\n{code}\n"
    assert compile_playbook(text, file="f", specs=SPECS).playbook is not None


def scalar(text: str, *path: str | int) -> Scalar:
    node = read_source(text).root
    for key in path:
        if isinstance(node, Mapping):
            node = node.entries[str(key)][1]
        else:
            assert isinstance(node, Sequence) and isinstance(key, int)
            node = node.items[key]
    assert isinstance(node, Scalar)
    return node


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: before @ after\n", 1, 11),
        ("a: 'it''s @ here'\n", 1, 11),
        ('a: "tab\\t and \\u00e9 @ here"\n', 1, 22),
        ("a: |\n  one\n  two @\n", 3, 7),
        ("a: |\n\n\n  two @\n", 4, 7),
        ("a: |2\n    two @\n", 2, 9),
        ("a: |-\n      deep\n        deeper @\n", 3, 16),
        ("a: >\n  one\n  two @\n  three\n", 3, 7),
        ("a: >\n  one\n\n  two @\n", 4, 7),
        ("a: one\n  two\n  three @\n", 3, 9),
        ("a: 'one\n  two @'\n", 2, 7),
        ('a: "one\n  two\n\n  three @"\n', 4, 9),
        ('a: "one \\\n  two @"\n', 2, 7),
        ("a: |\r\n  one\r\n  two @\r\n", 3, 7),
        ("a: 'é🎉 @'\n", 1, 8),
        ("- b:\n    - |\n      x @\n", 3, 9),
    ],
)
def test_a_position_inside_a_value_is_found_in_the_text(text, line, column):
    node = scalar(text, *((0, "b", 0) if text.startswith("-") else ("a",)))
    assert locate(text, node, node.value.index("@")) == (line, column)


def test_a_template_error_in_a_folded_value_is_reported_at_its_line():
    text = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t}\nworkflow:\n  - step: a\n    tool:\n"
        "      kind: http\n      url: >-\n        https://example.org/\n        {{ iter.x | nope }}\n"
    )
    found = [(d.code, d.line, d.column) for d in compile_playbook(text, file="f", specs=SPECS).diagnostics]
    assert ("unknown-filter", 10, 21) in found
