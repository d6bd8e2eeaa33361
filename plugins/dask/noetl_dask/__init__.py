"""The plug-in noetl-dask: a worker runtime on Dask clusters (`runtime.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noetl_dask.runtime import DaskRuntime


def connect(url: str) -> DaskRuntime:
    """Connect to the cluster of a URL."""
    from noetl_dask.runtime import connect as connect_to  # imports dask

    return connect_to(url)
