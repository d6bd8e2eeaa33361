"""The tests of diagnostics on the page of the language's rules: the golden case of each one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ERR = ROOT / "tests" / "core" / "language" / "err"
PAGE = ROOT / "docs" / "reference" / "language-rules.md"


def language_rules_page() -> str:
    """The page with the golden case of every diagnostic in the last column of its row."""
    cases = golden_cases()
    lines = [
        _with_cases(line, cases) if line.startswith("| ") else line for line in PAGE.read_text("utf-8").splitlines()
    ]
    return "\n".join(lines) + "\n"


def golden_cases() -> dict[str, str]:
    """Code of a diagnostic -> the case of `err` that reports it, of the same name if there is one."""
    found: dict[str, str] = {}
    for out in sorted(ERR.glob("*.out")):
        for code in re.findall(r"\[([\w-]+)\]$", out.read_text("utf-8"), re.M):
            if code not in found or out.stem == code:
                found[code] = out.stem
    return found


def _with_cases(line: str, cases: dict[str, str]) -> str:
    codes = re.findall(r"\[([\w-]+)\]\(diagnostics/", line)
    named = dict.fromkeys(cases[code] for code in codes if code in cases)
    bare = re.sub(r" `err/[\w.-]+`", "", line).rstrip(" |").rstrip()
    if not named:
        return line
    column = "".join(f" `err/{case}`" for case in named)
    return f"{bare}{' |' if bare.count(' | ') < 2 else ''}{column} |"
