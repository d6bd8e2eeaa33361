"""What a notification says: one occurrence in full, several as a list with their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from noetl.core.model.events import instant
from noetl.server.notifications.rules import Incident, Rule

MAX_VALUE = 2_000  # characters of a value in the text
SHOWN = 20  # occurrences that are listed
HIDDEN = ("title", "answers", "reasons")  # fields that are shown in another way


def notification_of(
    rule: Rule, incidents: Sequence[Incident], answers: Mapping[str, Sequence[Mapping[str, str]]] | None = None
) -> dict[str, Any]:
    """The document of a message; `answers` are links that answer waits, by the key of the occurrence."""
    links = answers or {}
    items = [
        {"on": each.on, "path": each.path, "title": each.title, "at": instant(each.at), "labels": each.labels}
        | each.details
        | ({"answers": links[each.key]} if links.get(each.key) else {})
        for each in incidents
    ]
    first = incidents[0]
    if len(incidents) == 1:
        subject = first.title if len(first.title) <= 120 else first.title[:119] + "…"
        lines = [first.title, ""]
        lines += [
            f"{name}: {_shown(value)}"
            for name, value in items[0].items()
            if name not in HIDDEN and value not in (None, {})
        ]
        if execution := first.details.get("execution_id"):
            lines += ["", f"noetl why {execution}"]
    else:
        counts = Counter(each.on for each in incidents)
        summary = ", ".join(f"{count} {on.replace('_', ' ')}" for on, count in counts.most_common())
        paths = sorted({each.path for each in incidents})
        where = paths[0] if len(paths) == 1 else f"{len(paths)} playbooks"
        subject = f"{summary} ({where})"
        lines = [f"{len(incidents)} occurrences: {summary}", ""]
        lines += [f"- {instant(each.at)} {each.title}" for each in incidents[:SHOWN]]
        if len(incidents) > SHOWN:
            lines.append(f"- and {len(incidents) - SHOWN} more")
    for each in incidents[:SHOWN]:
        lines += [line for link in links.get(each.key, ()) for line in ("", link["title"], link["url"])]
    return {
        "rule": rule.name,
        "on": first.on,
        "count": len(incidents),
        "subject": subject,
        "text": "\n".join(lines) + "\n",
        "items": items,
    }


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_VALUE else f"{len(text)} characters, see the execution"
