"""Playbooks with their expected diagnostics.

`ok/*.yaml` compile; their warnings are in a `.out` file. The diagnostics of `err/*.yaml` are exactly those of their
`.out` files. `NOETL_GOLDEN=write` rewrites the `.out` files.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dsl_kinds import SPECS
from dsl_snippets import examples

from noetl.core.language.compile import compile_playbook
from noetl.core.language.diagnostic_codes import CODES
from noetl.core.language.diagnostics import as_text

HERE = Path(__file__).parent
PAGES = HERE.parents[2] / "docs" / "reference" / "diagnostics"
OK = sorted((HERE / "ok").glob("*.yaml"))
ERR = sorted((HERE / "err").glob("*.yaml"))


def diagnostics_of(path: Path) -> tuple[bool, str]:
    content = path.read_bytes()
    result = compile_playbook(content, file=path.name, specs=SPECS)
    return result.playbook is not None, as_text(result.diagnostics, {path.name: content.decode(errors="replace")})


def expected(path: Path, output: str) -> str:
    out = path.with_suffix(".out")
    if os.environ.get("NOETL_GOLDEN") == "write":
        if output:
            out.write_text(output, encoding="utf-8")
        else:
            out.unlink(missing_ok=True)
    return out.read_text(encoding="utf-8") if out.exists() else ""


@pytest.mark.parametrize("path", OK, ids=lambda path: path.stem)
def test_a_correct_playbook_compiles_with_the_expected_diagnostics(path):
    compiled, output = diagnostics_of(path)
    assert output == expected(path, output)
    assert compiled


@pytest.mark.parametrize("path", ERR, ids=lambda path: path.stem)
def test_a_wrong_playbook_has_the_expected_diagnostics(path):
    compiled, output = diagnostics_of(path)
    assert output == expected(path, output)
    assert output
    assert compiled == (": error: " not in output)


def test_every_code_is_reported_by_some_example():
    reported = {code for path in ERR for code in CODES if f"[{code}]" in path.with_suffix(".out").read_text("utf-8")}
    # The first needs ten thousand problems: see test_diagnostics. The others need a server: see tests/server/http.
    assert set(CODES) - reported == {"too-many-problems", "no-worker", "unknown-schema"}


def test_every_code_has_its_page_and_every_page_its_code():
    assert {page.stem for page in PAGES.glob("*.md")} - {"index"} == set(CODES)
    index = (PAGES / "index.md").read_text("utf-8")
    for code in CODES.values():
        assert f"| [{code.name}]({code.name}.md) | {code.severity} | {code.title} |" in index


@pytest.mark.parametrize("code", CODES.values(), ids=lambda code: code.name)
def test_the_page_of_a_code_has_its_title_and_valid_examples(code):
    page = (PAGES / f"{code.name}.md").read_text("utf-8")
    assert page.startswith(f"# {code.name}\n\n**{code.title}** ({code.severity})\n\n")
    wrong, right = examples(page)
    codes = {found.code for found in compile_playbook(wrong, file="wrong", specs=SPECS).diagnostics}
    if code.name in ("no-worker", "unknown-schema"):
        assert codes == set()
    else:
        assert codes == {code.name} or code.name == "too-many-problems" in codes
    assert compile_playbook(right, file="right", specs=SPECS).diagnostics == ()
