"""Complete short examples: a list of steps, or some root keys, become a playbook."""

from __future__ import annotations

import re
from textwrap import indent

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"
NAME = "metadata: { name: example }\n"
STEPS = "workflow:\n  - step: start\n    tool: { kind: noop }\n"
ROOT = re.compile(r"^(metadata|keychain|executor|workload|workflow|workbook|vars):", re.M)


def whole(snippet: str, language: str = "yaml") -> str | bytes:
    """The playbook that an example stands for."""
    if language == "python":
        content = eval(snippet.strip(), {})  # bytes, or text too long to show
        assert isinstance(content, str | bytes)
        return content
    if snippet.startswith("- step:"):
        return HEAD + NAME + "workflow:\n" + indent(snippet, "  ")
    if not ROOT.search(snippet) or "apiVersion" in snippet:
        return snippet
    text = HEAD + ("" if re.search(r"^metadata:", snippet, re.M) else NAME) + snippet
    return text if re.search(r"^workflow:", snippet, re.M) else text + STEPS


BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.S)


def examples(page: str) -> tuple[str | bytes, str | bytes]:
    """The wrong and the right example of a diagnostic's page."""
    wrong, right = page.split("## Right")
    (language, snippet), *_ = BLOCK.findall(wrong.split("## Wrong")[1])
    (other, fixed), *_ = BLOCK.findall(right)
    return whole(snippet, language), whole(fixed, other)
