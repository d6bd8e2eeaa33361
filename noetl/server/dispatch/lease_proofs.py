"""Proofs of leases: what a worker must present to report on, extend, return or read the secrets of a run.

The proof of a lease is given only with its order. It is an HMAC over the token, the worker, the run and the epoch with
a random key of the installation, so that every server can check it, also after a restart, and it cannot be guessed. The
epoch changes with every lease: the proof of an earlier lease is not valid for a later one.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import blake2b

from noetl.core.model.work import RunOrder


class LeaseProofs:
    """Makes and checks the proofs of one installation."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, caller: str, worker: str, run_id: str, epoch: int) -> str:
        """The proof that this lease was given to this worker under this token."""
        text = f"{caller}\n{worker}\n{run_id}\n{epoch}".encode()
        return blake2b(text, digest_size=16, key=self._key).hexdigest()

    def for_orders(self, caller: str, worker: str, orders: Sequence[RunOrder]) -> list[str]:
        """The proofs of new leases."""
        return [self.make(caller, worker, order.run_id, order.epoch) for order in orders]

    def checks(self, caller: str, worker: str, runs: Sequence[tuple[str, int]], proofs: Sequence[str]) -> list[bool]:
        """Whether each lease is proved; a missing proof proves nothing."""
        given = [*proofs, *[""] * (len(runs) - len(proofs))]
        return [
            hmac.compare_digest(self.make(caller, worker, run_id, epoch).encode(), proof.encode())
            for (run_id, epoch), proof in zip(runs, given, strict=False)
        ]
