"""What can go wrong on the way, where no driver has a word for it."""

from __future__ import annotations

from noetl.core.model.outcome import ErrorInfo


class HttpError(Exception):
    """An answer of a web server that ends the matter."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info
