"""The reference pages of plug-ins under `plugins/`: the README, whose last part is generated, and the table of types.

The part of a README below the line MARK has all fields, from the declarations of the plug-in, without its driver.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

from docs.generate.tool_pages import fields_table, tool_page
from noetl.core.model.connector import SourceSpec, TargetSpec, TriggerSpec

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
MARK = "<!-- all fields, written by `python -m docs.generate` -->"
COMMON = "the reference of `transfer`"


def plugin_pages() -> dict[str, str]:
    """The pages by file name."""
    names = sorted(path.parent.name for path in PLUGINS.glob("*/pyproject.toml"))
    pages = {f"{name}.md": _page(name) for name in names}
    rows = [f"| [`noetl-{name}`]({name}.md) | {_project(name)['description']} |" for name in names]
    pages["index.md"] = "\n".join(["# Plug-ins", "", "| package | |", "|---|---|", *rows, ""])
    return pages


def plugin_readme(name: str) -> str:
    """The README of a plug-in: the part that is written by hand, and all fields."""
    by_hand = (PLUGINS / name / "README.md").read_text().partition(MARK)[0].rstrip("\n")
    fields = _fields(_project(name)["entry-points"], PLUGINS / name)
    return "\n".join([by_hand, "", MARK, "", *fields]).rstrip("\n") + "\n" if fields else by_hand + "\n"


def _page(name: str) -> str:
    lines = [plugin_readme(name).replace(f"{MARK}\n\n", "").replace(COMMON, f"[{COMMON}](../tools/transfer.md)")]
    types = PLUGINS / name / "types.md"
    if types.exists():
        lines += ["## Types", "", types.read_text().replace("## To ", "### To ")]
    return "\n".join(lines)


def _fields(points: dict[str, dict[str, str]], folder: Path) -> list[str]:
    sys.path.insert(0, str(folder))
    try:
        return [line for group in points.values() for value in group.values() for line in _part(value)]
    finally:
        sys.path.remove(str(folder))


def _part(value: str) -> list[str]:
    module, _, attribute = value.partition(":")
    found: Any = import_module(module)
    found = getattr(found, attribute) if attribute else found
    if isinstance(found, SourceSpec):
        return _section(f"Source `{found.kind}`", found, f"Its own fields; those of every source are in {COMMON}.")
    if isinstance(found, TargetSpec):
        modes = f"Modes: {', '.join(f'`{mode}`' for mode in found.modes)}."
        return _section(
            f"Target `{found.kind}`", found, f"{modes} Its own fields; those of every target are in {COMMON}."
        )
    if isinstance(found, TriggerSpec):
        return _section(f"Trigger `{found.kind}`", found)
    if not hasattr(found, "SPEC"):
        return []  # a runtime has no parameters
    return [
        line.replace("# ", "## ", 1) if line.startswith("#") else line
        for line in tool_page(found.SPEC).replace("```yaml part", "```text").split("\n")
    ]


def _section(title: str, spec: Any, *more: str) -> list[str]:
    lines = [f"## {title}", "", spec.doc, "", *(part for text in more for part in (text, ""))]
    lines += [*fields_table(spec.fields), ""]
    return [*lines, "```text", spec.example, "```", ""] if spec.example else lines


def _project(name: str) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((PLUGINS / name / "pyproject.toml").read_text())["project"]
    return project


def write_plugin_pages(folder: Path) -> None:
    """Write the pages, and the generated parts of the READMEs."""
    folder.mkdir(exist_ok=True)
    for path in PLUGINS.glob("*/pyproject.toml"):
        (path.parent / "README.md").write_text(plugin_readme(path.parent.name))
    for name, text in plugin_pages().items():
        (folder / name).write_text(text)
