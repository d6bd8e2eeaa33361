"""Limits of this machine's own store, and a run that says what holds it."""

from __future__ import annotations

import pytest

from noetl.cli import app as program
from noetl.cli import follow as driving

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: one, path: tests/one}
workflow:
  - {step: start, tool: {kind: noop}}
"""


def test_a_run_that_a_limit_holds_says_so_and_goes_on_without_it(tmp_path, monkeypatch, capsys):
    def noetl(*words: str) -> tuple[int, str, str]:
        code = program.run(words)
        return code, *capsys.readouterr()

    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(driving, "QUIET_SECONDS", 0.05)
    file = tmp_path / "one.yaml"
    file.write_text(TEXT)
    assert "no limits" in noetl("limit", "list")[2]
    assert noetl("limit", "set", "pool", "default", "0")[0] == 0
    code, _, err = noetl("run", str(file), "--timeout", "1")
    assert code == program.TIMED_OUT
    assert err.count('step "start" waits since') == 1
    assert "for the limit of pool default: 0 of 0 slots in use" in err
    assert noetl("limit", "remove", "pool", "default")[0] == 0
    assert noetl("run", str(file))[0] == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("set", "worker", "w", "1"), "a pool, a credential or a playbook"),
        (("set", "pool", "gpu", "many"), "'many' is not a valid integer"),
        (("show", "pool", "gpu"), "pool gpu has no limit"),
        (("remove", "pool", "gpu"), "pool gpu has no limit"),
    ],
)
def test_a_limit_that_makes_no_sense_is_one_line(tmp_path, monkeypatch, capsys, words, expected):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "home"))
    assert program.run(["limit", *words]) == program.USAGE
    assert expected in capsys.readouterr().err
