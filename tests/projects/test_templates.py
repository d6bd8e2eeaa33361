"""Every template of `noetl new` gives a project that is valid, formatted, tested and runs at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from noetl.cli.projects.new import _about, _templates

TEMPLATES = sorted(each.name for each in _templates())
ROOT = Path(__file__).resolve().parents[2]


def test_the_templates_are_listed(noetl):
    answer = noetl("new", "--list")
    assert answer.code == 0
    assert all(name in answer.out for name in TEMPLATES)
    assert noetl("new").code == 0


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_runs_at_once(noetl, folder, monkeypatch, template, tmp_path):
    assert noetl("new", "my-project", "--template", template).code == 0
    monkeypatch.chdir(folder / "my-project")
    checked = noetl("validate", ".")
    assert checked.code == 0, checked.out
    assert "no problems" in checked.err
    playbooks = [
        str(file) for file in Path().rglob("*.yaml") if not file.name.endswith((".test.yaml", ".resource.yaml"))
    ]
    formatted = noetl("fmt", "--check", *playbooks)
    assert formatted.code == 0, formatted.out
    tested = noetl("test")
    assert tested.code == 0, tested.out
    applied = noetl("apply", "--dry-run")
    assert applied.code == 0, applied.err
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "noetl").write_text(f'#!/bin/sh\nexec {sys.executable} -m noetl.clictl "$@"\n')
    (bin / "noetl").chmod(0o755)
    (about,) = [_about(each) for each in _templates() if each.name == template]
    for command in about["run"]:
        ran = subprocess.run(
            ["bash", "-mc", command],
            env={**os.environ, "PATH": f"{bin}:{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )  # fmt: skip
        assert "success in" in ran.stderr, ran.stderr


def test_a_name_in_use_and_an_unknown_template(noetl, folder):
    assert noetl("new", "one").code == 0
    again = noetl("new", "one")
    assert again.code != 0 and "exists and is not empty" in again.err
    unknown = noetl("new", "two", "--template", "api-to-bd")
    assert unknown.code == 2 and "did you mean api-to-db?" in unknown.err
    assert noetl("new", "bad name").code == 2
