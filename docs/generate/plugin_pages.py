"""The reference pages of plug-ins under `plugins/`, from their declarations; drivers are not needed for that."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

from docs.generate.tool_pages import fields_table, tool_page
from noetl.core.model.connector import SourceSpec, TargetSpec, TriggerSpec

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"


def plugin_pages() -> dict[str, str]:
    """The pages by file name."""
    names = sorted(path.parent.name for path in PLUGINS.glob("*/pyproject.toml"))
    pages = {f"{name}.md": _page(name) for name in names}
    rows = [f"| [`noetl-{name}`]({name}.md) | {_project(name)['description']} |" for name in names]
    pages["index.md"] = "\n".join(["# Plug-ins", "", "| package | |", "|---|---|", *rows, ""])
    return pages


def _page(name: str) -> str:
    project = _project(name)
    lines = [f"# `noetl-{name}`", "", f"{project['description']}. Source and tests: `plugins/{name}`.", ""]
    sys.path.insert(0, str(PLUGINS / name))
    try:
        for group in project["entry-points"].values():
            for value in group.values():
                lines += _part(value)
    finally:
        sys.path.remove(str(PLUGINS / name))
    types = PLUGINS / name / "types.md"
    if types.exists():
        lines += ["## Types", "", types.read_text().replace("## To ", "### To ")]
    return "\n".join(lines)


def _part(value: str) -> list[str]:
    module, _, attribute = value.partition(":")
    found: Any = import_module(module)
    found = getattr(found, attribute) if attribute else found
    if isinstance(found, SourceSpec):
        return _section(f"Source `{found.kind}`", found)
    if isinstance(found, TargetSpec):
        modes = f"Modes: {', '.join(f'`{mode}`' for mode in found.modes)}."
        return _section(f"Target `{found.kind}`", found, modes)
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
    """Write the pages."""
    folder.mkdir(exist_ok=True)
    for name, text in plugin_pages().items():
        (folder / name).write_text(text)
