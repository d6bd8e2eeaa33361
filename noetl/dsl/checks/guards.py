"""Guards that are no conditions."""

from __future__ import annotations

from noetl.dsl.checks.scene import Scene
from noetl.dsl.reading import shorten


def check(scene: Scene) -> None:
    """Tell guards that are plain text: they hold always (or never), whatever they say."""
    for guard in scene.sites.bare_guards:
        text = guard.node.value.strip()
        if text.lower() in ("true", "false"):
            continue
        if not text:
            scene.reader.add(
                "guard-without-template", guard.node, "an empty guard never holds", "write a condition, or leave it out"
            )
            continue
        message = "this guard is plain text, so it always holds"
        scene.reader.add("guard-without-template", guard.node, message, f'write "{{{{ {shorten(text)} }}}}"')
