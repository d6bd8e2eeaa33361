"""What is declared and never used: workbook blocks."""

from __future__ import annotations

from noetl.dsl.checks.scene import Scene
from noetl.dsl.nodes import Scalar
from noetl.dsl.reading import is_template


def check(scene: Scene) -> None:
    """Look for blocks that no task calls; a call by template may mean any of them."""
    if scene.open_ctx:
        return  # steps that are made at run time may call what they like
    called: set[str] = set()
    for body in scene.document.bodies():
        for task in body.tasks():
            if task.kind != "workbook":
                continue
            block = task.parameters.get("block")
            if block is None or not isinstance(block.value, Scalar) or is_template(block.value):
                return
            called.add(block.value.text)
    for declared in scene.document.blocks:
        if declared.name not in called:
            message = f'no task calls the block "{declared.name}"'
            hint = f"call it: `{{kind: workbook, block: {declared.name}}}`, or remove it"
            scene.reader.add("unused-block", declared.name_node, message, hint)
