"""Templates for names of local files: values cannot leave the folder that the author wrote before them.

In `data/{{ workload.name }}.csv` the author has chosen the folder `data`; the value `../../x` is an error. A text
that begins with an expression leaves the choice to the value, but `..` does not lead out of the playbook's folder.
The check is about names: symbolic links are part of the author's folders.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import unquote

from noetl.core.templates.budget import MAX_TEXT, Meter, NondeterminismSource
from noetl.core.templates.template import Compiled, compile_value, is_template
from noetl.errors import TemplateError

# The members of a parameter that are names of files, where the parameter is a mapping or a list of mappings.
_MEMBERS = frozenset(["file", "path", "uri", "database", "db_path", "db_file", "body_file"])
_EXPRESSION = re.compile(r"\{\{|\{%")
_FILE = "file://"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def with_checked_paths(
    value: Any, late: frozenset[str] = frozenset(), *, files: bool | Literal["members", "names"] = True
) -> Any:
    """The value with its templates for file names compiled so that they are checked.

    `files`: what names files: the value itself and its members, only its members, or each value of a mapping.
    Templates that read a `late` name are left: the tool evaluates them."""
    if files == "names":
        if not isinstance(value, Mapping):
            return with_checked_paths(value, late)
        return {
            name: each if isinstance(each, list) else with_checked_paths(each, late) for name, each in value.items()
        }
    if isinstance(value, str):
        is_path = files is True and (not _ADDRESS.match(value) or value.lower().startswith(_FILE))
        if not is_path or not is_template(value):
            return value
        compiled = compile_value(value)
        return value if any(name.partition(".")[0] in late for name in compiled.names) else _Path(value, compiled)
    if isinstance(value, Mapping):
        return {key: with_checked_paths(each, late, files=key in _MEMBERS) for key, each in value.items()}
    if isinstance(value, list):
        return [with_checked_paths(each, late, files=files) for each in value]
    return value


def leaves_folder(template: str, made: str) -> bool:
    """Whether a rendered file name is outside of the folder that the template names before its first expression."""
    if template.lower().startswith(_FILE):
        if not made.lower().startswith(_FILE):
            return True
        template, made = template[len(_FILE) :], unquote(made[len(_FILE) :])
    first = _EXPRESSION.search(template)
    written = template[: first.start()].strip() if first else template
    if _ADDRESS.match(made):
        return bool(written)
    folder = posixpath.normpath(posixpath.dirname(written) or ".")
    path = posixpath.normpath(made.strip().replace("\\", "/"))
    if folder in (".", "/"):
        return path == ".." or path.startswith("../") or (bool(written) and folder == "." and path.startswith("/"))
    return path != folder and not path.startswith(folder + "/")


class _Path(Compiled):
    __slots__ = ("_inner", "_text", "names")
    static = False

    def __init__(self, text: str, inner: Compiled) -> None:
        self._text = text
        self._inner = inner
        self.names = inner.names

    def evaluate(
        self,
        names: Mapping[str, Any],
        nondeterminism: NondeterminismSource | None = None,
        *,
        max_text: int = MAX_TEXT,
        meter: Meter | None = None,
    ) -> Any:
        made = self._inner.evaluate(names, nondeterminism, max_text=max_text, meter=meter)
        if isinstance(made, str) and (leaves_folder(self._text, made) or "\0" in made):
            raise TemplateError(
                "a value leads out of the folder that is written before it; a value in the name of a file may not "
                "contain `..` or begin another path",
                text=self._text,
            )
        return made
