"""Reports of playbook tests for CI: JUnit XML, and annotations of GitHub."""

from __future__ import annotations

from collections.abc import Sequence as Several
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from noetl.core.language.source.nodes import Mapping, Scalar, Sequence
from noetl.core.language.source.yaml_source import read_source
from noetl.runtime.printable import printable

if TYPE_CHECKING:
    from noetl.testing.playbook_tests.assertions import CaseResult


def write_junit(target: Path, results: Several[CaseResult], broken: Several[tuple[str, str]]) -> None:
    """Write the results as JUnit XML; `broken` are test files that could not be read, with the reason."""
    suites = ElementTree.Element("testsuites")
    for file in dict.fromkeys([*(one.file for one in results), *(file for file, _ in broken)]):
        own = [one for one in results if one.file == file]
        errors = [reason for name, reason in broken if name == file]
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=_clean(file),
            tests=str(len(own) + len(errors)),
            failures=str(sum(not one.ok and not one.invalid for one in own)),
            errors=str(sum(one.invalid for one in own) + len(errors)),
            time=f"{sum(one.duration_ms for one in own) / 1000:.3f}",
        )
        for one in own:
            seconds = f"{one.duration_ms / 1000:.3f}"
            case = ElementTree.SubElement(
                suite, "testcase", classname=_clean(file), name=_clean(one.name), time=seconds
            )
            if not one.ok:
                kind = "error" if one.invalid else "failure"
                ElementTree.SubElement(case, kind, message=_clean(one.problems[0])).text = _clean(
                    "\n".join(one.problems)
                )
        for reason in errors:
            case = ElementTree.SubElement(suite, "testcase", classname=_clean(file), name="read the file", time="0")
            ElementTree.SubElement(case, "error", message=_clean(reason))
    target.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suites).write(target, encoding="utf-8", xml_declaration=True)


def github_annotations(results: Several[CaseResult], broken: Several[tuple[str, str]]) -> list[str]:
    """One GitHub workflow command per failed test, at the line of its name."""
    found = [
        (one.file, f",line={_line_of(one.file, one.name)}", f"{one.name}: {'; '.join(one.problems)}")
        for one in results
        if not one.ok
    ]
    found += [(file, "", reason) for file, reason in broken]
    return [f"::error file={_escape(file, ',:')}{line}::{_escape(text)}" for file, line, text in found]


def _line_of(file: str, name: str) -> int:
    """The line of a test's name; 1 if the file has no such test."""
    root = read_source(Path(file).read_bytes()).root
    tests = root.get("tests") if isinstance(root, Mapping) else None
    for test in tests.items if isinstance(tests, Sequence) else ():
        named = test.get("name") if isinstance(test, Mapping) else None
        if isinstance(named, Scalar) and named.text == name:
            return named.line
    return 1


def _escape(text: str, more: str = "") -> str:
    for letter in "%\r\n" + more:
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


def _clean(text: str) -> str:
    """The text with escapes of characters that XML does not allow, or that readers of the report would obey."""
    return printable(text).replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff")
