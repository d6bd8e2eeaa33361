"""What the pages show is true: playbooks compile, commands exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from noetl.cli import app as program

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DIAGNOSTICS = ROOT / "docs" / "reference" / "diagnostics"  # pages of wrong playbooks: tests/dsl compiles them
FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: page}\n"
ROOT_KEYS = ("keychain:", "executor:", "workload:", "workflow:", "workbook:")


def blocks(language: str) -> list:
    """Fenced blocks of all pages: (text, words after the language), without the fence's own indentation."""
    found = []
    for page in PAGES:
        if page.is_relative_to(DIAGNOSTICS):
            continue
        text = page.read_text()
        for match in FENCE.finditer(text):
            if match[2] == language:
                lines = [line.removeprefix(match[1]) for line in match[4].splitlines()]
                place = f"{page.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 2}"
                found.append(pytest.param("\n".join(lines) + "\n", match[3].split(), id=place))
    return found


def whole(text: str) -> str:
    """A playbook around a part of one: some steps, some tasks, or some root sections."""
    first = next(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    if first.startswith(("apiVersion:", "kind:")):
        return text
    if first.startswith("- step:"):
        return f"{HEAD}workflow:\n{text}"
    if first.startswith(("- name:", "- kind:")):
        return f"{HEAD}workflow:\n  - step: start\n    tool:\n" + "".join(
            f"      {line}\n" for line in text.splitlines()
        )
    if first.startswith(("tool:", "loop:", "set:", "input:", "spec:", "next:")):
        step = "".join(f"    {line}\n" for line in text.splitlines())
        return f"{HEAD}workflow:\n  - step: start\n{step}" + ("" if "tool:" in text else "    tool: {kind: noop}\n")
    if first.startswith(ROOT_KEYS):
        return HEAD + text + ("" if "workflow:" in text else "workflow:\n  - step: start\n    tool: {kind: noop}\n")
    raise AssertionError("no part of a playbook is recognised in this block; use ```text for other things")


def test_the_pages_were_found():
    assert len(PAGES) > 5
    assert len(blocks("yaml")) > 5


@pytest.mark.parametrize(("text", "words"), blocks("yaml"))
def test_every_playbook_on_a_page_compiles(text, words):
    """Without a finding, unless the fence says otherwise: ```yaml v10, legacy, invalid, or part (of something larger)."""
    from noetl.core.language.compile import compile_playbook
    from noetl.tools import registry as tools

    compilation = compile_playbook(whole(text), file="page.yaml", specs=tools.specs(), legacy="legacy" in words)
    found = [str(diagnostic) for diagnostic in compilation.diagnostics]
    if "invalid" in words:
        assert compilation.playbook is None
    elif {"v10", "legacy", "part"} & set(words):
        assert compilation.playbook is not None, found
    else:
        assert found == []


@pytest.mark.parametrize(("text", "words"), blocks("console"))
def test_every_command_on_a_page_exists(text, words):
    for line in text.splitlines():
        for command in re.findall(r"(?:^\$ |\| )(?:\w+=\S+ )*(noetl .*?)(?= \| | > |$)", line):
            arguments = shlex.split(command.partition(" #")[0])[1:]
            with program.noetl.make_context("noetl", arguments, resilient_parsing=True) as ctx:
                name, verb, rest = program.noetl.resolve_command(ctx, arguments)
            if not {"--help", "--version"} & set(rest):
                verb.make_context(name, rest)  # a usage error when an option or argument does not exist


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page):
    for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("cli.md", "command_page"),
        ("api.md", "api_page"),
        ("settings.md", "settings_page"),
        ("metrics.md", "metrics_page"),
        ("messages.md", "messages_page"),
    ],
)
def test_the_generated_pages_are_up_to_date(name, page):
    from docs.generate import pages as reference

    assert (ROOT / "docs" / "reference" / name).read_text() == getattr(reference, page)(), "run `make docs`"
