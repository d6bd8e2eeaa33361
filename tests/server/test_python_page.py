"""Every program of the Python page runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_page_runs(number, tmp_path, monkeypatch):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    subprocess.run([sys.executable, "-c", PROGRAMS[number]], check=True, capture_output=True, timeout=60)


def test_the_page_names_everything_the_package_offers():
    import noetl

    text = PAGE.read_text()
    assert [name for name in noetl._MODULES if f"noetl.{name}" not in text] == []
