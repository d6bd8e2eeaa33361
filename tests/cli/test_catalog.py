"""The catalog from the command line."""

from __future__ import annotations

ONE = "workflow:\n  - step: start\n    tool: {kind: python, code: 'result = 1'}\n"
TWO = "workflow:\n  - step: start\n    tool: {kind: python, code: 'result = 2'}\n"
BAD = "workflow:\n  - step: start\n    tool: {kind: nope}\n"


def test_a_new_text_is_a_new_version_and_the_same_text_is_not(noetl, playbook):
    assert noetl("register", playbook(ONE), "--json").json[0]["version"] == 1
    assert noetl("register", playbook(ONE)).out == "tests/sample version 1\n"
    assert noetl("register", playbook(TWO)).out == "tests/sample version 2\n"
    listed = noetl("catalog", "list", "--json").json
    assert [(one["path"], one["version"]) for one in listed] == [("tests/sample", 2)]
    assert "tests/sample" in noetl("catalog", "list").out


def test_show_prints_the_text_that_was_registered(noetl, playbook, folder):
    file = playbook(ONE)
    text = (folder / file).read_text()
    noetl("register", file)
    noetl("register", playbook(TWO))
    assert noetl("catalog", "show", "tests/sample", "--version", "1").out == text
    assert "result = 2" in noetl("catalog", "show", "tests/sample", "--json").json["text"]
    answer = noetl("catalog", "show", "tests/sample", "--version", "9")
    assert answer.code == 2
    assert answer.err.count("\n") == 1


def test_a_registered_playbook_runs_by_its_path(noetl, playbook, folder):
    file = playbook(ONE)
    noetl("register", file)
    (folder / file).unlink()
    answer = noetl("run", "tests/sample", "--json")
    assert answer.code == 0
    assert answer.json["output"]["data"] == 1


def test_an_unknown_path_is_a_one_line_error(noetl):
    answer = noetl("run", "tests/nobody")
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "tests/nobody" in answer.err


def test_if_one_file_is_invalid_none_is_registered(noetl, playbook):
    answer = noetl("register", playbook(ONE, "good"), playbook(BAD, "bad"))
    assert answer.code == 3
    assert "bad.yaml:6:18" in answer.err
    assert noetl("catalog", "list", "--json").json == []
    assert noetl("register", "missing.yaml").code == 2
