"""The how-to pages about data: their files and commands, run in the order of the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r'^```(\w+)(?: title="([^"\n]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ ([^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", re.MULTILINE)
PAGES = ("keep-state.md", "load-incrementally.md", "query-results.md")
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z"), "TIME"),
    (re.compile(r"\b\d{18}\b"), "ID"),
    (re.compile(r"user-[0-9a-f]+"), "user-1"),
)


def comparable(text: str) -> list[list[str]]:
    """The words of each line, without what differs from run to run."""
    for pattern, word in VARYING:
        text = pattern.sub(word, text)
    return [line.split() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_print_what_it_shows(noetl, folder, page):
    commands = 0
    for language, title, text in FENCE.findall((ROOT / "docs/howto" / page).read_text()):
        if title:
            (folder / title).parent.mkdir(parents=True, exist_ok=True)
            (folder / title).write_text(text)
        elif language == "console":
            for command, output in COMMAND.findall(text):
                words = shlex.split(command)
                assert words[0] == "noetl", command
                answer = noetl(*words[1:])
                assert answer.code == 0, (command, answer.err)
                if output:
                    assert comparable(answer.out) == comparable(output), command
                    commands += 1
    assert commands
