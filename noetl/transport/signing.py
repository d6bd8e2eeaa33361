"""Signatures of the messages between workers and servers over NATS.

The key is the SHA-256 of a worker's token, which is what an installation stores of the token. Neither is sent over
NATS.

    question   id of the key (16 hex) + HMAC-SHA256 over verb, stamp and body (64 hex) + stamp + body
    stamp      nonce (16 hex) + time in milliseconds (12 hex)
    answer     HMAC-SHA256 over the question's signature and the body (64 hex) + body

Threat model. The attacker can connect to NATS, read every message of the installation, publish messages of their
own, and delay, drop or repeat messages. The attacker has no token and no access to the stores.

Protected:
- A question without a valid signature is rejected, so only the owner of a token can claim, report, extend or give
  back runs. The verb is signed, so a signed body is not valid for another verb.
- An answer is bound to its question. It cannot be forged or exchanged for the answer of another question.
- Tokens cannot be derived from messages: they are random, and only HMACs of their digests are sent.
- Values of secrets are not sent over NATS (see `nats_link`).
- A recorded question cannot be sent again: it has a nonce and a time. A server refuses a question that it has seen,
  and one that is more than 60 seconds older or newer than its own clock. Another server of the same installation may
  accept a repeated question once, within these 60 seconds; that has no more effect than a repeated delivery, which
  every question must tolerate.

Not protected:
- Confidentiality. Bodies (inputs and results of runs) are readable by every NATS client. Use TLS and NATS
  permissions.
- Availability. The attacker can drop messages, publish many, or answer first with an unsigned refusal. Requests
  then fall back to HTTP; wake-ups, withdrawals of claims and messages that a run is revoked are unsigned: they are
  hints, and a forged one costs a poll or a heartbeat.
- A worker's token that has been stolen: it is valid until it is deleted. It acts only for workers that use this
  token, and for a run only with the proof of its lease (`server.dispatch.lease_proofs`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import NamedTuple

NAME = 16
SIGNATURE = 64
NONCE = 16
STAMP = NONCE + 12
MAX_SKEW = 60.0  # seconds between the clocks of a worker and a server


class Question(NamedTuple):
    """The parts of a question: id of the key, signature, stamp (nonce and time), body."""

    key_name: str
    signature: bytes
    stamp: bytes
    body: bytes


class ReplayFilter:
    """Recognizes questions that were sent before."""

    def __init__(self, seconds: float = MAX_SKEW) -> None:
        self._seconds = seconds
        self._seen: dict[bytes, float] = {}  # signature -> when it may be forgotten

    def is_new(self, question: Question, now: float) -> bool:
        """Whether a question is recent and was not seen before; it counts as seen from now on."""
        try:
            sent = int(question.stamp[NONCE:], 16) / 1000
        except ValueError:
            return False
        if abs(now - sent) > self._seconds or question.signature in self._seen:
            return False
        self._seen[question.signature] = sent + self._seconds
        while self._seen and next(iter(self._seen.values())) < now - self._seconds:
            del self._seen[next(iter(self._seen))]
        return True


def key_of(token: str) -> str:
    """The key of a token: its SHA-256, which is what an installation stores."""
    return hashlib.sha256(token.encode()).hexdigest()


def name_of(key: str) -> str:
    """The id of a key, which does not reveal it."""
    return hashlib.sha256(key.encode()).hexdigest()[:NAME]


def signed_question(key: str, verb: str, body: bytes) -> bytes:
    """A question with its stamp and signature."""
    stamped = f"{secrets.token_hex(NONCE // 2)}{int(time.time() * 1000):012x}".encode() + body
    return name_of(key).encode() + _sign(key, verb.encode(), stamped) + stamped


def read_question(data: bytes) -> Question | None:
    """The parts of a question; None if it is malformed."""
    if len(data) < NAME + SIGNATURE + STAMP:
        return None
    start = NAME + SIGNATURE
    name = data[:NAME].decode("latin-1")
    return Question(name, data[NAME:start], data[start : start + STAMP], data[start + STAMP :])


def proves(question: Question, key: str, verb: str) -> bool:
    """Whether the question was signed with this key."""
    return hmac.compare_digest(question.signature, _sign(key, verb.encode(), question.stamp + question.body))


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
