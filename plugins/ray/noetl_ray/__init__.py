"""The plug-in noetl-ray: a worker runtime on Ray clusters (`runtime.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noetl_ray.runtime import RayRuntime


def connect(url: str) -> RayRuntime:
    """Connect to the cluster of a URL."""
    from noetl_ray.runtime import connect as connect_to  # imports ray

    return connect_to(url)
