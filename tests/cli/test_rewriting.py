"""`noetl fmt`: in place, from stdin, or only looking."""

from __future__ import annotations

from pathlib import Path

UNTIDY = "workflow:\n-   step: start   \n    tool:\n    - go: {kind: noop}\n"


def test_fmt_rewrites_in_place_once(noetl, playbook):
    file = playbook(UNTIDY)
    answer = noetl("fmt", file)
    assert (answer.code, answer.out) == (0, "")
    assert "formatted" in answer.err
    text = Path(file).read_text()
    assert text.endswith("workflow:\n  - step: start\n    tool:\n      - {name: go, kind: noop}\n")
    assert noetl("fmt", file).err == ""
    assert Path(file).read_text() == text


def test_check_names_what_would_change_and_writes_nothing(noetl, playbook):
    file = playbook(UNTIDY)
    before = Path(file).read_bytes()
    answer = noetl("fmt", "--check", file)
    assert (answer.code, answer.out) == (1, f"{file}\n")
    assert Path(file).read_bytes() == before
    noetl("fmt", file)
    assert noetl("fmt", "--check", file).code == 0


def test_what_is_no_yaml_is_told_and_left_alone(noetl, playbook):
    file = playbook("workflow: [1,\n")
    before = Path(file).read_bytes()
    answer = noetl("fmt", file)
    assert answer.code == 3
    assert "yaml-syntax" in answer.err
    assert Path(file).read_bytes() == before
    assert noetl("fmt", "nowhere.yaml").code == 2
