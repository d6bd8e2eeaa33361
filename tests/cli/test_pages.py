"""A playbook on a page prints the output that the page shows below it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def shown(page: str) -> Iterator[tuple[str, str, str]]:
    """Every command of a page whose output is printed: the playbook before it, the command, the output."""
    playbook = ""
    for language, text in FENCE.findall((ROOT / page).read_text()):
        if language == "yaml":
            playbook = text
        elif language == "console":
            for command, output in re.findall(r"^\$ (noetl [^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", text, re.MULTILINE):
                if output:
                    yield playbook, command, output


CASES = [
    pytest.param(*case, id=f"{page} {case[1]} #{number}")
    for page in ("README.md", "docs/tutorial.md", "docs/howto/run-with-other-inputs.md")
    for number, case in enumerate(shown(page))
]


def test_pages_with_outputs_are_found():
    assert len(CASES) >= 10


@pytest.mark.parametrize(("text", "command", "output"), CASES)
def test_a_command_on_a_page_prints_what_the_page_says(noetl, folder, text, command, output):
    words = shlex.split(command)[1:]
    (folder / words[1]).write_text(text)
    assert noetl(*words).out == output
