"""Messages for common mistakes: what happened, where, and what to do."""

from __future__ import annotations

import pytest

ONE = "workload: {who: world, deep: {a: 1}}\nworkflow:\n  - step: start\n    tool: {kind: python, input: {x: '{{ workload.later | default(1) }}'}, code: 'result = x'}\n"


def test_a_playbook_given_to_test_names_its_test_file(noetl, playbook, folder):
    name = playbook(ONE)
    answer = noetl("test", name)
    assert answer.code == 2
    assert "sample.yaml is a playbook without tests: write them in sample.test.yaml" in answer.err
    (folder / "sample.test.yaml").write_text("tests: [{name: one, expect: {output: 1}}]\n")
    assert noetl("test", name).code == 0


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("- 1", "sample.test.yaml:1:1: expected a mapping, got a list"),
        ("tests: 3", "sample.test.yaml:1:8: expected a list, got a whole number"),
        ("tests: [{name: x, paylod: {}}]", "sample.test.yaml:1:19: unknown key paylod; did you mean payload?"),
        (
            "tests: [{name: x, expect: {statuss: ok}}]",
            "sample.test.yaml:1:28: unknown key statuss; did you mean status?",
        ),
    ],
)
def test_a_mistake_in_a_test_file_has_its_line(noetl, playbook, folder, tests, message):
    (folder / "sample.yaml").write_text("kind: Playbook\n")
    (folder / "sample.test.yaml").write_text(tests)
    answer = noetl("test", "sample.test.yaml")
    assert answer.code == 3
    assert message in answer.err


def test_validate_walks_a_folder(noetl, playbook, folder):
    playbook(ONE, "one")
    (folder / "deep").mkdir()
    playbook("workflow:\n  - step: start\n    tool: {kind: nope}\n", "deep/two")
    (folder / "values.yaml").write_text("a: 1\n")
    answer = noetl("validate", ".")
    assert answer.code == 3
    assert "deep/two.yaml" in answer.out
    assert "2 files" in answer.err
    (folder / "empty").mkdir()
    empty = noetl("validate", "empty")
    assert empty.code == 2
    assert "no playbooks" in empty.err and "no problems" not in empty.err
    missing = noetl("validate", "nowhere.yaml")
    assert missing.code == 2 and "no problems" not in missing.err


@pytest.mark.parametrize(
    "words",
    [
        ("run", "tests/sampel"),
        ("catalog", "show", "tests/sampel"),
        ("schedule", "add", "tests/sampel", "--cron", "@daily"),
    ],
)
def test_an_unknown_path_gets_a_suggestion(noetl, playbook, words):
    assert noetl("register", playbook(ONE)).code == 0
    answer = noetl(*words)
    assert answer.code == 2
    assert "tests/sample" in answer.err.replace("tests/sampel", "")


def test_an_unknown_version_names_the_newest(noetl, playbook):
    noetl("register", playbook(ONE))
    assert "the newest is 1" in noetl("catalog", "show", "tests/sample", "--version", "7").err


@pytest.mark.parametrize(
    ("value", "warned"),
    [
        ("whoo=1", "workload.whoo; did you mean who?"),
        ("deep.b=1", "workload.deep.b"),
        ("who=1", ""),
        ("later=2", ""),
        ("deep.a=2", ""),
    ],
)
def test_a_value_that_the_playbook_does_not_use_is_a_warning(noetl, playbook, value, warned):
    answer = noetl("run", playbook(ONE), "--set", value)
    assert answer.code == 0
    assert ("does not use" in answer.err) is bool(warned)
    assert warned in answer.err


def test_a_misspelt_setting_is_a_warning(noetl, folder, monkeypatch):
    monkeypatch.setenv("NOETL_SLOTZ", "1")
    (folder / ".env").write_text("NOETL_STOER=x\nOTHER=1\n")
    (folder / "noetl.toml").write_text("slotz = 1\n")
    answer = noetl("config", "show")
    assert answer.code == 0
    assert "environment: unknown setting NOETL_SLOTZ; did you mean NOETL_SLOTS?" in answer.err
    assert ".env: unknown setting NOETL_STOER; did you mean NOETL_STORE?" in answer.err
    assert "noetl.toml: unknown setting slotz; did you mean slots?" in answer.err
    assert "OTHER" not in answer.err


def test_a_credential_type_is_checked(noetl):
    answer = noetl("credential", "set", "db", "--type", "postgress", "--data", "{}")
    assert answer.code == 2
    assert "unknown type 'postgress'; did you mean postgres?" in answer.err
    assert noetl("credential", "set", "db", "--type", "postgres_credential", "--data", '{"a": 1}').code == 0


def test_a_missing_variable_mentions_that_env_files_are_not_read(noetl, playbook, folder):
    (folder / ".env").write_text("SHOP_TOKEN=x\n")
    answer = noetl("run", playbook("keychain: [{name: shop, kind: env, var: SHOP_TOKEN}]\n" + ONE))
    assert answer.code == 1
    assert "SHOP_TOKEN is not set (.env is read for NOETL_* settings only)" in answer.err


def test_places_are_relative_to_the_working_folder(noetl, playbook, folder):
    name = playbook("workflow:\n  - step: start\n    tool: {kind: python, code: 'raise ValueError(1)'}\n")
    answer = noetl("run", name)
    assert answer.code == 1
    assert "(sample.yaml:6)" in answer.err
    assert str(folder) not in answer.err


def test_the_payload_of_stdin_may_be_yaml(noetl, playbook, start):
    import subprocess

    process = start("run", playbook(ONE), "--payload", "@-", stdin=subprocess.PIPE)
    out, err = process.communicate("later: 5\n", timeout=60)
    assert process.returncode == 0, err
    assert out == "5\n"


def test_keychain_errors_name_their_entry_once():
    from noetl.errors import SecretUnavailable, read_reasons

    reasons = {"a": "missing; really", "b": 'depends on "c": no'}
    assert read_reasons(str(SecretUnavailable(reasons))) == reasons
    assert str(SecretUnavailable(read_reasons("no keychain"))) == "no keychain"
