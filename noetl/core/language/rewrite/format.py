"""`noetl fmt`: one canonical layout without a change of meaning.

The formatter changes trailing white space, the final newline, indentation (two columns), nested `set` targets,
labelled tasks, and `else` without `then`. Comments, blank lines, quotes, flow and block style and the order of keys
stay. A change is applied only if the text has the same comments and compiles to the same playbook afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping as Table

from noetl.core.language.compile import compile_playbook
from noetl.core.language.rewrite.concrete_edits import NeedsExpansion
from noetl.core.language.rewrite.concrete_syntax import Unsupported, parse
from noetl.core.language.rewrite.concrete_writer import write
from noetl.core.language.rewrite.spellings import Spelling, flatten_sets, name_labelled_tasks, nest_elses
from noetl.core.language.rewrite.verification import has_same_comments, has_same_data, model_of
from noetl.core.language.source.yaml_source import read_source
from noetl.core.model.tool import ToolSpec

SPELLINGS: tuple[Spelling, ...] = (name_labelled_tasks, flatten_sets, nest_elses)


def format_text(text: str, specs: Table[str, ToolSpec]) -> str:
    """The text in its canonical layout; a text that is not valid YAML is returned unchanged."""
    source = read_source(text)
    if source.root is None or any(problem.code != "yaml-number" for problem in source.problems):
        return text
    plain, ends = without_line_ends(source.text)
    laid_out = lay_out(plain)
    if laid_out is None:
        return text
    before = ""
    while before != laid_out:
        before = laid_out
        for spelling in SPELLINGS:
            laid_out = _spelled(laid_out, spelling, specs)
    return laid_out.replace("\n", ends)


def without_line_ends(text: str) -> tuple[str, str]:
    """The text with `\\n` as line end and without byte order mark, and the line end to write."""
    ends = "\r\n" if "\r\n" in text and text.count("\r\n") == text.count("\n") else "\n"
    return text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff"), ends


def lay_out(text: str) -> str | None:
    """The text in canonical layout, or None if it cannot be written without a change."""
    try:
        laid_out = write(parse(text))
    except Unsupported:
        return None
    return laid_out if has_same_data(text, laid_out) and has_same_comments(text, laid_out) else None


def _spelled(text: str, spelling: Spelling, specs: Table[str, ToolSpec]) -> str:
    """The text with one spelling changed, unless that changes its meaning."""
    document = parse(text)
    root = read_source(text).root
    assert root is not None  # the text was read before
    try:
        spelling(document, root)
    except NeedsExpansion:
        return text
    spelled = write(document)
    if spelled == text or not has_same_comments(text, spelled) or lay_out(spelled) != spelled:
        return text
    before, after = (compile_playbook(each, file="", specs=specs) for each in (text, spelled))
    return spelled if model_of(before) == model_of(after) else text
