"""Lines of tasks as documents and as text: the API, `noetl logs` and the web page."""

from __future__ import annotations

import re
from typing import Any

from noetl.core.model.events import instant
from noetl.core.model.task_log import StoredLine

LEVELS = ("error", "warning", "info", "debug")

# A level at the start of a line, after a time or in brackets; or as a field of a structured line.
_LEVEL = re.compile(
    r"""^(?:[\d\-:.,TZ+ ]{8,40})?[\s\[(<|]*(critical|fatal|error|err|warning|warn|info|debug|trace)\b"""
    r"""|["']?(?:level|levelname|severity)["']?\s*[:=]\s*["']?(critical|fatal|error|warning|warn|info|debug|trace)\b""",
    re.IGNORECASE,
)
_NAMES = {"critical": "error", "fatal": "error", "err": "error", "warn": "warning", "trace": "debug"}


def level_of(text: str) -> str | None:
    """The level that a line names, one of `LEVELS`; None if it names none."""
    found = _LEVEL.search(text[:400])
    if found is None:
        return None
    word = (found[1] or found[2]).lower()
    return _NAMES.get(word, word)


def line_document(stored: StoredLine) -> dict[str, Any]:
    """One line for the API."""
    source, line = stored.source, stored.line
    document: dict[str, Any] = {
        "seq": stored.seq,
        "at": round(line.at * 1000, 3),
        "step": source.step,
        "task": source.task,
        "iteration": source.iteration or None,
        "run": source.run,
        "visit": source.visit,
        "attempt": source.attempt,
        "stream": line.stream,
        "level": level_of(line.text),
        "text": line.text,
    }
    if line.dropped:
        document["dropped"] = line.dropped
    return document


def line_text(stored: StoredLine) -> str:
    """One line for a text file."""
    source, line = stored.source, stored.line
    where = f"{source.step}[{source.iteration}]" if source.iteration else source.step
    attempt = f" attempt {source.attempt}" if source.attempt > 1 else ""
    text = f"{line.dropped:,} {line.text}" if line.dropped else line.text
    return f"{instant(line.at)} {where}.{source.task}{attempt} {line.stream} {text}"
