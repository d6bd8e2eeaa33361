"""`noetl lsp` and `noetl mcp` without their package, and that other commands do not import them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from noetl.cli import app
from noetl.runtime.requirements import Requirement


@pytest.mark.parametrize(("command", "package"), [("lsp", "pygls"), ("mcp", "mcp")])
def test_a_missing_package_is_one_line_with_the_command(command, package, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == package or "integrations" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(Requirement, "installed", property(lambda self: self.package != package))
    assert app.run([command]) == 1
    message = f"error: {package} is not installed: pip install --upgrade noetl-engine\n"
    assert capsys.readouterr() == ("", message)


def test_the_packages_are_imported_only_by_their_commands():
    code = "import sys; from noetl.cli import app; app.run(['lsp', '--help']); app.run(['mcp', '--help']); " + (
        "print(sorted({'pygls', 'lsprotocol', 'mcp', 'pydantic'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr
