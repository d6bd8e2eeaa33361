"""The page has everything that the command line has: the table of the documentation lists every command."""

from __future__ import annotations

import re

import click

from noetl.cli.app import COMMANDS, noetl
from tests.ui.browsing import ROOT

EDITORS = {"lsp", "mcp"}  # started by editors and assistants
TABLE = ROOT / "docs" / "howto" / "operate-on-the-page.md"


def leaves() -> set[str]:
    """All commands with their subcommands: `run`, `schedule add`."""
    context = click.Context(noetl)
    found = set()
    for name in COMMANDS.keys() - EDITORS:
        command = noetl.get_command(context, name)
        subcommands = list(command.commands) if isinstance(command, click.Group) else []
        found |= {f"{name} {each}" for each in subcommands} or {name}
    return found


def listed() -> set[str]:
    """The commands of the table and of the sentence below it; the words after a group are its subcommands."""
    text = TABLE.read_text(encoding="utf-8").split("## Commands and pages")[1]
    rows = re.findall(r"^\| (`noetl.*?) \|", text, re.MULTILINE)
    found = set()
    for row in rows:
        group = ""
        for words in re.findall(r"`([^`]+)`", row):
            group, _, rest = (
                words.removeprefix("noetl ").partition(" ") if words.startswith("noetl ") else (group, "", words)
            )
            found.add(f"{group} {rest}".strip())
    only = text[text.index("Only in a terminal") :]
    return found | {words.removeprefix("noetl ") for words in re.findall(r"`([^`]+)`", only)}


def test_every_command_is_listed_with_its_place_on_the_page():
    assert listed() == leaves()
