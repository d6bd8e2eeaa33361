"""Limits in the local store, and a run that reports the limit for which it waits."""

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


def test_a_run_that_waits_for_a_limit_reports_it_and_starts_when_it_is_removed(tmp_path, monkeypatch, capsys):
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
    assert err.count('step "start" has been waiting for') == 1
    assert "for the limit of pool default: 0 of 0 slots in use" in err
    assert noetl("limit", "remove", "pool", "default")[0] == 0
    assert noetl("run", str(file))[0] == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("set", "worker", "w", "1"), "'worker' is not one of 'pool', 'credential'"),
        (("set", "pool", "gpu", "many"), "'many' is not a valid integer"),
        (("show", "pool", "gpu"), "there is no limit 'pool gpu'"),
        (("remove", "pool", "gpu"), "there is no limit 'pool gpu'"),
    ],
)
def test_an_invalid_limit_is_a_one_line_error(tmp_path, monkeypatch, capsys, words, expected):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "home"))
    assert program.run(["limit", *words]) == program.USAGE
    assert expected in capsys.readouterr().err
