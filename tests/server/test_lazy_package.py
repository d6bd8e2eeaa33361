"""`import noetl` is cheap, and what it offers lazily is what its types say."""

import ast
import subprocess
import sys
from pathlib import Path

import noetl


def test_importing_the_package_imports_nothing_else():
    code = "import sys, noetl; print([name for name in sys.modules if name.startswith('noetl.') or name == 'asyncio'])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_lazy_names_and_their_types_agree():
    tree = ast.parse((Path(noetl.__file__).parent / "__init__.pyi").read_text())
    typed = {
        alias.asname: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == noetl._MODULES
    for name in typed:
        assert getattr(noetl, name) is not None
    assert set(typed) < set(dir(noetl))
