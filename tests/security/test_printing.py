"""Class "terminal and logs": control, OSC and bidirectional characters of data are shown as escapes."""

from __future__ import annotations

import io
import json
import logging
from xml.etree import ElementTree

import click
import pytest

from noetl.cli import app
from noetl.cli.output.terminal import Terminal, shown
from noetl.observability import logging as logs
from noetl.runtime.printable import printable, printable_json
from noetl.testing.playbook_tests.assertions import CaseResult
from noetl.testing.playbook_tests.reports import write_junit

ATTACKS = [
    "\x1b]0;title\x07", "\x1b[2J\x1b[H", "\x1b[31mred", "\x1b[8mhidden", "\x9b2J", "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]52;c;ZXZpbA==\x07", "\x1bP+q\x1b\\", "\x1b[6n", "a\rb", "a\bb", "\x7f", "\x00", "\x85", "\u202eevil", "\u2066x\u2069",
    "\u200b", "\ufeff", "\u2028", "\U000e0041", "\U000e0100", "\U000e01ef", "\x1b[?1049h", "\x1bc",
    "\u034f", "\u115f", "\u3164", "\uffa0", "\u2800", "\ufe00", "\u180b", "\u0600", "\u06dd", "\u08e2", "\U00013430", "\U0001bca0", "\U0001d173", "\U000110bd",
    "a" + "\u0301" * 9, "x" + "\u0e49" * 50, "e" + "\u20dd\u0489" * 20, "\ufe20" * 5, "\ufe0f" * 9,
]  # fmt: skip


def is_safe(text: str) -> bool:
    return printable(text) == text and all(character in "\n\t" or character.isprintable() for character in text)


@pytest.mark.parametrize("attack", ATTACKS)
def test_characters_that_a_terminal_obeys_are_escaped(attack):
    assert not is_safe(attack)
    assert is_safe(printable(attack)) and is_safe(shown(attack))
    plain = "plain äöü 数字 😀 ❤️ e\u0302\u0323 ที่ نَصّ\n\ttext"
    assert printable(plain) == plain
    encoded = printable_json(json.dumps({"a": attack}, ensure_ascii=False))
    assert is_safe(encoded) and json.loads(encoded) == {"a": attack}


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_way_of_printing_escapes_data(attack, capsys, monkeypatch):
    terminal = Terminal()
    terminal.verbose = 1
    terminal.data(attack)
    terminal.json({"a": attack})
    terminal.json_line({attack: attack})
    terminal.table(("a",), [(attack,)])
    for write in (terminal.note, terminal.detail, terminal.warn, terminal.error):
        write(attack)
    captured = capsys.readouterr()
    assert is_safe(captured.out) and is_safe(captured.err)


@pytest.mark.parametrize("attack", [*ATTACKS, "\ufffe", "\uffff", "\ud800", "<a b='&'>]]>"])
def test_junit_reports_are_xml_and_safe_to_print(attack, tmp_path):
    results = [CaseResult(f"{attack}.yaml", attack, (attack, f"b{attack}"), 1.0), CaseResult("b", attack, (), 1.0)]
    write_junit(tmp_path / "junit.xml", results, [(attack, attack)])
    text = (tmp_path / "junit.xml").read_text()
    assert is_safe(text)
    cases = ElementTree.fromstring(text).findall(".//testcase")
    assert len(cases) == 3 and is_safe("".join(case.attrib["name"] for case in cases))


def test_styles_survive_and_data_cannot_imitate_them(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    terminal.note(terminal.styled("\x1b[31m", "green"))
    assert capsys.readouterr().err == "\x1b[32m\\x1b[31m\x1b[0m\n"


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("attack", [*ATTACKS, "a\nINFO forged line"])
def test_logs_escape_data(attack, format):
    stream = io.StringIO()
    formatter = logs.TextFormatter() if format == "text" else logs.JsonFormatter()
    record = logging.LogRecord("noetl", logging.INFO, "", 1, "%s", (attack,), None)
    record.step = attack
    stream.write(formatter.format(record))
    assert is_safe(stream.getvalue())
    assert "\n" not in stream.getvalue()


def commands() -> list[list[str]]:
    """Every command of the command line, with its subcommands."""
    found: list[list[str]] = []

    def walk(command: click.Command, words: list[str]) -> None:
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                child = command.get_command(click.Context(command), name)
                if child is not None:
                    walk(child, [*words, name])
        else:
            found.append(words)

    walk(app.noetl, [])
    return found


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_escapes_its_arguments_in_errors(words, tmp_path, capsys, monkeypatch):
    """Unknown names are quoted in messages; whatever the command does with them, nothing is printed raw."""
    if words[0] in ("server", "worker", "dev", "lsp", "mcp", "cluster", "restore", "backup", "completion"):
        pytest.skip("starts processes or reads standard input")
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert app.run([*words, "\x1b]0;title\x07\u202e", "--no-such-\x1b[2J"]) != 0
    captured = capsys.readouterr()
    assert is_safe(captured.out) and is_safe(captured.err)
