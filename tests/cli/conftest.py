"""Fixtures that run command lines, each test with its own data folder and working folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from noetl.cli import app
from noetl.cli.output.terminal import terminal

ROOT = Path(__file__).resolve().parents[2]


class Answer(NamedTuple):
    """Exit code and output of a command line."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(autouse=True)
def default_verbosity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts with the terminal's defaults, whatever ran before in this process."""
    monkeypatch.setattr(terminal, "quiet", False)
    monkeypatch.setattr(terminal, "verbose", 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with NOETL_HOME beside it."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return work


@pytest.fixture
def noetl(folder: Path, capsys: pytest.CaptureFixture[str]):
    """Run a command line in this process."""

    def run(*words: str) -> Answer:
        terminal.quiet, terminal.verbose = False, 0
        code = app.run([str(word) for word in words])
        shown = capsys.readouterr()
        return Answer(code, shown.out, shown.err)

    return run


@pytest.fixture
def start(folder: Path):
    """Start a command line as a process of its own; processes that are still running after the test are killed."""
    started: list[subprocess.Popen[str]] = []

    def run(*words: str, **more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "noetl.clictl", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            **more,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: {name}, path: tests/{name}}}
"""


@pytest.fixture
def playbook(folder: Path):
    """Write a playbook file: a head, then the rest as given."""

    def write(rest: str, name: str = "sample") -> str:
        file = folder / f"{name}.yaml"
        file.write_text(PLAYBOOK.format(name=name) + rest)
        return file.name

    return write
