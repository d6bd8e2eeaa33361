"""`noetl fmt`: one canonical layout without a change of meaning.

The formatter changes trailing white space, the final newline, indentation (two columns), nested `set` targets,
labelled tasks, and `else` without `then`. Comments, blank lines, quotes, flow and block style and the order of keys
stay. A change is applied only if the text has the same comments and compiles to the same playbook afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping as Table

from noetl.core.language.compile import compile_playbook, gc_paused
from noetl.core.language.rewrite.concrete_edits import NeedsExpansion
from noetl.core.language.rewrite.concrete_syntax import Unsupported, parse
from noetl.core.language.rewrite.concrete_writer import write
from noetl.core.language.rewrite.spellings import Spelling, flatten_sets, name_labelled_tasks, nest_elses
from noetl.core.language.rewrite.verification import has_comments, has_same_data, model_of
from noetl.core.language.source.yaml_source import read_source
from noetl.core.model.tool import ToolSpec

SPELLINGS: tuple[Spelling, ...] = (name_labelled_tasks, flatten_sets, nest_elses)


def format_text(text: str, specs: Table[str, ToolSpec]) -> str:
    """The text in its canonical layout; a text that is not valid YAML is returned unchanged."""
    with gc_paused():
        source = read_source(text)
        if source.root is None or any(problem.code != "yaml-number" for problem in source.problems):
            return text
        plain, ends = without_line_ends(source.text)
        laid_out = _laid_out(plain)
        return text if laid_out is None else _with_spellings(laid_out, specs).replace("\n", ends)


def _with_spellings(text: str, specs: Table[str, ToolSpec]) -> str:
    """The text with all spellings that do not change its meaning; one may make another possible."""
    spelled = _spelled(text, SPELLINGS, specs)
    if spelled is None:
        spelled = text
        for spelling in SPELLINGS:
            spelled = _spelled(spelled, (spelling,), specs) or spelled
    return text if spelled == text else _with_spellings(spelled, specs)


def without_line_ends(text: str) -> tuple[str, str]:
    """The text with `\\n` as line end and without byte order mark, and the line end to write."""
    ends = "\r\n" if "\r\n" in text and text.count("\r\n") == text.count("\n") else "\n"
    return text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff"), ends


def _laid_out(text: str) -> str | None:
    """The text in canonical layout, or None if it cannot be written without a change."""
    try:
        document = parse(text)
    except Unsupported:
        return None
    laid_out = write(document)
    same = laid_out == text or (has_same_data(text, laid_out) and has_comments(laid_out, document.comments))
    return laid_out if same else None


def _spelled(text: str, spellings: tuple[Spelling, ...], specs: Table[str, ToolSpec]) -> str | None:
    """The text with some spellings changed; None if that would change its meaning."""
    document = parse(text)
    root = read_source(text).root
    assert root is not None  # the text was read before
    try:
        for spelling in spellings:
            spelling(document, root)
    except NeedsExpansion:
        return None
    spelled = write(document)
    if spelled == text:
        return text
    if not has_comments(spelled, document.comments) or _laid_out(spelled) != spelled:
        return None
    before, after = (compile_playbook(each, file="", specs=specs) for each in (text, spelled))
    return spelled if model_of(before) == model_of(after) else None
