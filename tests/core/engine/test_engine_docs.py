"""Every event is documented."""

from __future__ import annotations

import re
from pathlib import Path

from noetl.core.model.events import BODIES

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "events.md"


def test_every_event_is_documented_once_and_nothing_else_is():
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    documented = [section.splitlines()[0].strip().strip("`") for section in sections]
    assert sorted(documented) == sorted({name for name, _ in BODIES})
    for section in sections:
        paragraph = " ".join(section.splitlines()[1:]).strip()
        assert len(paragraph) > 40, section
