"""The server reads logs in pages: a log of millions of events does not fit into its memory."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import noetl

SERVER = Path(noetl.__file__).parent / "server"


def unlimited_reads(text: str) -> Iterator[int]:
    """The lines that read an event store, or the events of an orchestrator, without a limit."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = ast.unparse(node.func.value)
        reads = (node.func.attr == "read" and owner.endswith("store")) or (
            node.func.attr == "events" and owner.endswith("orchestrator")
        )
        limited = len(node.args) >= 3 or any(each.arg == "limit" for each in node.keywords)
        if reads and not limited:
            yield node.lineno


def test_a_read_without_a_limit_is_found():
    assert list(unlimited_reads("await self.store.read(id)\nawait store.read(id, 0, 5)\nawait store.read(id, 2)")) == [
        1,
        3,
    ]


def test_the_server_reads_logs_with_a_limit():
    state = {"playbook_states.py"}  # the state of a playbook, which is limited
    found = [
        f"{file.relative_to(SERVER)}:{line}"
        for file in SERVER.rglob("*.py")
        if file.name not in state
        for line in unlimited_reads(file.read_text())
    ]
    assert found == []
