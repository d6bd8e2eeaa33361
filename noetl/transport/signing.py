"""Messages that cross a broker, signed with a token that does not cross it.

Whoever reaches the broker can read and send messages, so each question proves that its sender has a token and each
answer that its sender knows that token's digest too. What installations keep of a token is its SHA-256: the key.

    question   key's name (16 hex) + signature (64 hex) + body
    answer     signature over the question's signature and the body (64 hex) + body
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

NAME = 16
SIGNATURE = 64


class Question(NamedTuple):
    """A question as it came: who claims to ask, the proof, and what is asked."""

    key_name: str
    signature: bytes
    body: bytes


def key_of(token: str) -> str:
    """The key of a token: what an installation keeps of it."""
    return hashlib.sha256(token.encode()).hexdigest()


def name_of(key: str) -> str:
    """By which a key is found, without telling it."""
    return hashlib.sha256(key.encode()).hexdigest()[:NAME]


def signed_question(key: str, verb: str, body: bytes) -> bytes:
    """A question that proves who asks."""
    return name_of(key).encode() + _sign(key, verb.encode(), body) + body


def read_question(data: bytes) -> Question | None:
    """The parts of a question; None when it is none."""
    if len(data) < NAME + SIGNATURE:
        return None
    name = data[:NAME].decode("latin-1")
    return Question(name, data[NAME : NAME + SIGNATURE], data[NAME + SIGNATURE :])


def proves(question: Question, key: str, verb: str) -> bool:
    """Whether who asked has this key."""
    return hmac.compare_digest(question.signature, _sign(key, verb.encode(), question.body))


def signed_answer(key: str, question: bytes, body: bytes) -> bytes:
    """An answer that proves that it belongs to the question (its signature) and who gave it."""
    return _sign(key, question, body) + body


def read_answer(key: str, question: bytes, data: bytes) -> bytes | None:
    """What an answer says; None when it is not from one who knows the key, or not for this question."""
    proof, body = data[:SIGNATURE], data[SIGNATURE:]
    return body if hmac.compare_digest(proof, _sign(key, question, body)) else None


def signature_of(question: bytes) -> bytes:
    """The signature within a question."""
    return question[NAME : NAME + SIGNATURE]


def _sign(key: str, about: bytes, body: bytes) -> bytes:
    mac = hmac.new(key.encode(), about + b"\n", hashlib.sha256)
    mac.update(body)
    return mac.hexdigest().encode()
