"""Every event and every state is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import state_machines

from noetl.core.model.events import BODIES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "events.md"


def test_every_event_is_documented_once_and_nothing_else_is():
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    documented = [section.splitlines()[0].strip().strip("`") for section in sections]
    assert sorted(documented) == sorted({name for name, _ in BODIES})
    for section in sections:
        paragraph = " ".join(section.splitlines()[1:]).strip()
        assert len(paragraph) > 40, section


def test_the_state_machines_are_those_of_the_engine():
    page = state_machines.PAGE.read_text()
    assert page == state_machines.with_diagrams(page), "run `make docs`"


@pytest.mark.parametrize("machine", state_machines.MACHINES)
def test_every_state_is_described(machine):
    section = state_machines.PAGE.read_text().partition(f"\n## {machine}\n")[2].partition("\n## ")[0]
    described = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert sorted(described) == state_machines.states_of(machine)
