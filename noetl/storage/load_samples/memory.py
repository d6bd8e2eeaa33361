"""Load samples in memory."""

from __future__ import annotations

from noetl.storage.ports.load_samples import StoredLoad


class MemoryLoadSampleStore:
    """`ports.LoadSampleStore` in memory."""

    def __init__(self) -> None:
        self._samples: list[StoredLoad] = []

    async def add(self, sample: StoredLoad) -> None:
        """Store a sample."""
        self._samples.append(sample)

    async def since(self, at: float) -> list[StoredLoad]:
        """The samples since an instant, oldest first."""
        return sorted((each for each in self._samples if each.at >= at), key=lambda each: each.at)

    async def drop(self, before: float) -> None:
        """Delete the samples before an instant."""
        self._samples = [each for each in self._samples if each.at >= before]
