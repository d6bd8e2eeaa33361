"""Lineage of this process: whether the ends of executions are reported as OpenLineage events.

`NAMESPACE` is that of its jobs. `ENDED` is None unless the process reports; callers check it."""

from __future__ import annotations

from collections.abc import Callable

NAMESPACE = "noetl"
ENDED: Callable[[str], None] | None = None  # called with the id of an execution that has ended
