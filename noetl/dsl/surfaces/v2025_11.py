"""The surface of November 2025. Without the legacy extension each of its words is told with its replacement."""

from __future__ import annotations

from noetl.dsl.reading import Word

_RUN = "`noetl migrate` rewrites it, `--legacy` runs it as it is"


def _word(code: str, message: str, instead: str) -> Word:
    return Word(code, message, f"{instead}; {_RUN}")


REJECTED: dict[tuple[str, str], Word] = {
    ("step", "when"): _word(
        "legacy-step-when",
        "a step has no `when`",
        "write `spec: {policy: {admit: {rules: [{when: ..., then: {allow: true}}]}}}`",
    ),
    ("step", "next[]"): _word(
        "legacy-next-list",
        "`next` is a mapping with `arcs`, not a list",
        "write `next: {arcs: [{step: ..., when: ...}]}`",
    ),
}
