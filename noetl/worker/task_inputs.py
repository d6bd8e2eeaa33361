"""The input of task attempts in the log: what the templates of a task gave, masked.

Fields without a template are not recorded: the playbook has them. A small input is part of `task.done`; a larger one is
in the result store, by reference; of a very large one only the shape is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.core.model.secret_names import SECRET_NAME, mask_secret_names
from noetl.core.pipeline.actions import RecordedInput, RunTask
from noetl.core.pipeline.frame import Frame
from noetl.core.templates.binding import bound_text
from noetl.core.templates.views import plain
from noetl.errors import NoetlError
from noetl.worker.cache import Secrets
from noetl.worker.payloads import Payloads

MAX_INLINE = 4 * 1024  # bytes of JSON in the event
MAX_STORED = 256 * 1024  # bytes of JSON in the result store
OMITTED = "$omitted"  # the key of a description in place of a value

_encode = msgspec.json.Encoder().encode
_SECRET_NAME = re.compile(SECRET_NAME.encode(), re.IGNORECASE)
_MARK = b"\\u0001"  # of the values of expressions in a text that is code (`templates.binding`)


class InputRecorder:
    """Prepares the input of a task for its `task.done`."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads

    async def record(self, frame: Frame, action: RunTask, secrets: Secrets) -> RecordedInput | None:
        """What the log has of the input; None if no field has a template."""
        fields = frame.top.compiled.fields
        if not fields:
            return None
        values = {each.name: action.input[each.name] for each in fields if each.name in action.input}
        try:
            encoded = _encode(values)
        except (TypeError, ValueError, RecursionError, OverflowError):
            values, encoded = _as_json(values)
        if _MARK in encoded and (tool := frame.top.compiled.tool) is not None:
            bound = {name for name, field in tool.fields.items() if field.bind}
            values = {name: _unmarked(value) if name in bound else value for name, value in values.items()}
        if secrets.masker:
            values = secrets.masker.mask_data(values)
        if _SECRET_NAME.search(encoded):
            values = mask_secret_names(values)
        if len(encoded) <= MAX_INLINE:
            return RecordedInput(values)
        return await self._store(frame, action, values, len(encoded))

    async def _store(self, frame: Frame, action: RunTask, values: dict[str, Any], size: int) -> RecordedInput:
        if size > MAX_STORED:
            return RecordedInput(_shapes(values))
        context = frame.order.context
        name = f"{context.execution_id}/{context.step}/{action.task_run_id.partition(':')[2]}/input"
        try:
            return RecordedInput(ref=await self._payloads.put_value(name, values))
        except NoetlError as problem:
            shapes = _shapes(values)
            return RecordedInput({**shapes, OMITTED: f"the input could not be stored: {problem}"})


def _as_json(values: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Values of templates that are no JSON data yet; those that cannot become it are described."""
    converted: dict[str, Any] = {}
    for name, value in values.items():
        try:
            converted[name] = plain(value)
            _encode(converted[name])
        except (NoetlError, TypeError, ValueError, RecursionError, OverflowError):
            converted[name] = {OMITTED: type(value).__name__}
    return converted, _encode(converted)


def _unmarked(value: Any) -> Any:
    if isinstance(value, str):
        return bound_text(value)
    if isinstance(value, Mapping):
        return {key: _unmarked(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_unmarked(each) for each in value]
    return value


def _shapes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Small values as they are, others described."""
    return {name: _shape(value) for name, value in values.items()}


def _shape(value: Any) -> Any:
    size = len(_encode(value))
    if size <= MAX_INLINE // 8:
        return value
    if isinstance(value, str):
        what = f"text of {len(value):,} characters"
    elif isinstance(value, Mapping):
        what = f"mapping with {len(value):,} keys"
    elif isinstance(value, list | tuple):
        what = f"list of {len(value):,} items"
    else:
        what = type(value).__name__
    return {OMITTED: f"{what}, {size:,} bytes"}
