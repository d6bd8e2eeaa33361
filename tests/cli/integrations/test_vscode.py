"""The extension for VS Code: built, and its client logic run by Node against `noetl lsp`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
EXTENSION = ROOT / "editors" / "vscode"


def node(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "FOLDER": "editors/vscode",
        "PY": sys.executable,
        "NOETL": json.dumps([sys.executable, "-m", "noetl"]),
    }
    return subprocess.run(
        [str(ROOT / ".ci" / "node"), *arguments], env=environment, capture_output=True, text=True, timeout=110
    )


@pytest.mark.skipif(not (EXTENSION / "node_modules").is_dir(), reason="`make vscode` installs the packages")
def test_the_extension_is_built_and_talks_to_the_server():
    done = node("npm", "run", "-s", "test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout or "fail 0" in done.stdout


def test_the_manifest_names_what_the_extension_reads():
    manifest = json.loads((EXTENSION / "package.json").read_text("utf-8"))
    contributed = manifest["contributes"]
    source = (EXTENSION / "src" / "extension.ts").read_text("utf-8")
    for name in contributed["configuration"]["properties"]:
        assert f'"{name.removeprefix("noetl.")}"' in source
    for command in contributed["commands"]:
        assert f'"{command["command"]}"' in source
    for file in [contributed["languages"][0]["configuration"], contributed["grammars"][0]["path"]]:
        assert (EXTENSION / file).is_file()
    from noetl import __version__
    from noetl.cli.integrations.language_server.documents import LANGUAGE

    assert contributed["languages"][0]["id"] == LANGUAGE
    assert manifest["version"] == __version__


def test_the_lock_names_no_registry():
    assert "resolved" not in (EXTENSION / "package-lock.json").read_text("utf-8")
