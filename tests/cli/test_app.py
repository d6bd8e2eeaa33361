"""The command line as a whole: arguments in, output and exit codes out."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import click
import pytest

import noetl
from noetl.cli import app as program
from noetl.cli.output.terminal import output_options, terminal
from noetl.errors import CorruptLog, NotFound, StoreUnavailable


@pytest.fixture(autouse=True)
def knobs():
    yield
    terminal.quiet, terminal.verbose = False, 0


@pytest.fixture
def failing(monkeypatch):
    """Run a command that raises what the test gives it."""

    def run(problem: BaseException, *words: str) -> int:
        @click.command()
        @output_options
        def broken() -> None:
            raise problem

        monkeypatch.setattr(program.LazyGroup, "get_command", lambda self, ctx, name: broken)
        return program.run(["broken", *words])

    return run


def test_the_version_is_printed_without_heavy_imports():
    code = (
        "import sys\nfrom noetl.clictl import main\n"
        "try: main(['--version'])\nexcept SystemExit as end: assert end.code == 0\n"
        "heavy = {'click', 'rich', 'msgspec', 'asyncio', 'jinja2', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stderr == ""
    assert ran.stdout == f"noetl {noetl.__version__}\n"


@pytest.mark.serial
def test_the_version_takes_less_than_150_ms_of_cpu():
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "noetl.clictl", "--version"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.150


def test_without_a_command_the_help_is_printed_with_a_usage_exit_code(capsys):
    assert program.run([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_every_command_can_be_imported_and_has_help(capsys):
    for name in [*program.COMMANDS, *program.ALIASES]:
        assert program.run([name, "--help"]) == 0
        assert "Usage: noetl" in capsys.readouterr().out


def test_a_misspelled_command_is_a_usage_error_with_a_suggestion(capsys):
    assert program.run(["confg"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert 'did you mean "config"?' in shown.err


def test_the_removed_command_cluster_names_its_replacement(capsys):
    assert program.run(["cluster", "start"]) == 2
    assert "`make cluster`" in capsys.readouterr().err


@pytest.mark.parametrize(("theirs", "ours"), [("list", "executions"), ("retry", "rerun"), ("deploy", "apply")])
def test_the_name_of_a_command_in_other_tools_gets_the_name_here(theirs, ours, capsys):
    assert program.run([theirs]) == 2
    assert f'unknown command "{theirs}"; did you mean "{ours}"?' in capsys.readouterr().err


def test_an_unknown_option_is_a_usage_error(capsys):
    assert program.run(["config", "show", "--colour"]) == 2
    assert "--colour" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("problem", "code", "words"),
    [
        (NotFound("no execution 7"), 2, "error: no execution 7\n"),
        (StoreUnavailable("the store is out of reach"), 4, "error: the store is out of reach\n"),
        (ConnectionRefusedError(111, "Connection refused"), 4, "Connection refused"),
        (CorruptLog("seq 4 is missing"), 1, "error: seq 4 is missing\n"),
        (PermissionError(13, "Permission denied", "/x/y"), 1, "error: /x/y: Permission denied\n"),
        (ZeroDivisionError("division by zero"), 1, "internal error: ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_every_exception_is_one_line_and_an_exit_code(failing, capsys, problem, code, words):
    assert failing(problem) == code
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.err.strip().count("\n") == 0
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_verbose_prints_the_traceback_of_an_internal_error(failing, capsys):
    assert failing(ZeroDivisionError("division by zero"), "-v") == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_closed_pipe_is_not_reported():
    ran = subprocess.run(
        f"{sys.executable} -m noetl.clictl config show --json | head -c 1", shell=True, capture_output=True, text=True
    )
    assert ran.stdout == "{"
    assert ran.stderr == ""


def test_config_show_prints_data_on_stdout_and_warnings_on_stderr(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOETL_TOKEN", "very-secret-token")
    (tmp_path / "noetl.toml").write_text("slots = 3\nslotz = 4\n")
    assert program.run(["config", "show", "--origin", "--json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["slots"] == {"value": 3, "origin": "noetl.toml (slots)"}
    assert document["token"] == {"value": "(set)", "origin": "environment NOETL_TOKEN"}
    assert "unknown setting slotz" in shown.err
    assert program.run(["config", "show", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "very-secret-token" not in shown.out


def test_completion_suggests_commands():
    ran = subprocess.run(
        [sys.executable, "-m", "noetl.clictl"],
        env={"_NOETL_COMPLETE": "bash_complete", "COMP_WORDS": "noetl con", "COMP_CWORD": "1", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert "config" in ran.stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_replaced(folder, closed: str):
    line = f'exec "$0" -m noetl.clictl executions --json {closed}'
    answer = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_characters_outside_the_output_encoding_are_json_escapes(folder, playbook):
    file = playbook("workflow:\n  - step: start\n    tool: {kind: python, code: \"result = {'told': 'é😀'}\"}\n")
    answer = subprocess.run(
        [sys.executable, "-m", "noetl.clictl", "run", file, "--json"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.decode("ascii"))["output"]["data"] == {"told": "é😀"}
