"""Signatures of the messages between workers and servers over NATS.

The key is the SHA-256 of a worker's token, which is what an installation stores of the token. Neither is sent over
NATS.

    question   id of the key (16 hex) + HMAC-SHA256 over verb and body (64 hex) + body
    answer     HMAC-SHA256 over the question's signature and the body (64 hex) + body

Threat model. The attacker can connect to NATS, read every message of the installation, publish messages of their
own, and delay, drop or repeat messages. The attacker has no token and no access to the stores.

Protected:
- A question without a valid signature is rejected, so only the owner of a token can claim, report, extend or give
  back runs. The verb is signed, so a signed body is not valid for another verb.
- An answer is bound to its question. It cannot be forged or exchanged for the answer of another question.
- Tokens cannot be derived from messages: they are random, and only HMACs of their digests are sent.
- Values of secrets are not sent over NATS (see `nats_link`).

Replay. A recorded question can be sent again, because it has neither a time nor a counter. This has no more effect
than a repeated delivery, which every question must tolerate: a report is recognized by its key, an extension or a
return names the epoch of a lease and does nothing when that lease is over. A replayed claim leases runs to a worker
that has not requested them: the next heartbeat of that worker returns them, or the leases expire. So replay can
delay runs, not change them.

Not protected:
- Confidentiality. Bodies (inputs and results of runs) are readable by every NATS client. Use TLS and NATS
  permissions.
- Availability. The attacker can drop messages, publish many, or answer first with an unsigned refusal. Requests
  then fall back to HTTP; work notifications and wake-ups are unsigned, and a forged one costs one poll.
- The message that a run is revoked is unsigned: a forged one stops a run on its worker, and the server leases the
  run again later. Use NATS permissions to restrict publishing to servers.
- A worker's token that has been stolen: it is valid until it is deleted. Every token with the role worker can act
  for every worker id.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

NAME = 16
SIGNATURE = 64


class Question(NamedTuple):
    """The parts of a question: id of the key, signature, body."""

    key_name: str
    signature: bytes
    body: bytes


def key_of(token: str) -> str:
    """The key of a token: its SHA-256, which is what an installation stores."""
    return hashlib.sha256(token.encode()).hexdigest()


def name_of(key: str) -> str:
    """The id of a key, which does not reveal it."""
    return hashlib.sha256(key.encode()).hexdigest()[:NAME]


def signed_question(key: str, verb: str, body: bytes) -> bytes:
    """A question with its signature."""
    return name_of(key).encode() + _sign(key, verb.encode(), body) + body


def read_question(data: bytes) -> Question | None:
    """The parts of a question; None if it is malformed."""
    if len(data) < NAME + SIGNATURE:
        return None
    name = data[:NAME].decode("latin-1")
    return Question(name, data[NAME : NAME + SIGNATURE], data[NAME + SIGNATURE :])


def proves(question: Question, key: str, verb: str) -> bool:
    """Whether the question was signed with this key."""
    return hmac.compare_digest(question.signature, _sign(key, verb.encode(), question.body))


def signed_answer(key: str, question: bytes, body: bytes) -> bytes:
    """An answer, signed together with the signature of its question."""
    return _sign(key, question, body) + body


def read_answer(key: str, question: bytes, data: bytes) -> bytes | None:
    """The body of an answer; None if it was not signed with the key for this question."""
    proof, body = data[:SIGNATURE], data[SIGNATURE:]
    return body if hmac.compare_digest(proof, _sign(key, question, body)) else None


def signature_of(question: bytes) -> bytes:
    """The signature of an encoded question."""
    return question[NAME : NAME + SIGNATURE]


def _sign(key: str, about: bytes, body: bytes) -> bytes:
    mac = hmac.new(key.encode(), about + b"\n", hashlib.sha256)
    mac.update(body)
    return mac.hexdigest().encode()
