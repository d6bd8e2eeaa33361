"""Every encoding of a secret is masked, everywhere; other text is unchanged."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import random
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.model.outcome import error
from noetl.runtime.masking import MASK, Masker, secret_texts

SECRET = 'p@ss "wörd"/+&\\x\n2nd-line-of-it'


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        json.dumps(json.dumps({"k": SECRET})),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        quote(SECRET, safe="").lower(),
        html.escape(SECRET),
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        repr(SECRET),
    ],
)
def test_each_form_is_masked(form):
    masked = Masker([SECRET]).mask(f"before {form} after")
    assert masked.startswith("before ") and masked.endswith(" after")
    assert "ss" not in masked and "2nd" not in masked and "70407373" not in masked


@given(
    secret=st.text(min_size=8, max_size=40).filter(lambda text: text.strip() and text.isprintable()),
    before=st.binary(max_size=8),
    after=st.binary(max_size=8),
)
@settings(max_examples=150, deadline=None)
def test_base64_is_masked_at_every_alignment_inside_a_longer_text(secret, before, after):
    raw = secret.encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(before + raw + after).decode()
        masked = Masker([secret]).mask(text)
        assert MASK in masked
        # What is left decodes to nothing that holds the secret: too few characters of it remain.
        assert len(masked) - len(MASK) <= len(text) - (len(raw) * 8 // 6 - 2)


def test_overlapping_secrets_leave_nothing_between_them():
    assert Masker(["abcd1234", "1234efgh"]).mask("x abcd1234efgh y") == f"x {MASK} y"
    assert Masker(["secret", "secret-longer"]).mask("secret-longer") == MASK


def test_each_line_of_a_key_is_masked():
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----\n"
    masker = Masker([key])
    assert masker.mask("line: kqhkiG9w0BAQEF") == f"line: {MASK}"


def test_short_values_are_masked_only_as_whole_words():
    masker = Masker(["abc", "true"])
    assert masker.mask("abc") == MASK
    assert masker.mask("xabcx") == "xabcx"
    assert masker.mask("true") == "true"
    assert masker.mask_data({"a": "abc", "b": "abcd"}) == {"a": MASK, "b": "abcd"}


def test_addresses_are_not_secrets_but_the_password_in_a_url_is():
    credential = {
        "db_host": "db.example.org",
        "port": 5432,
        "user": "reporting",
        "db_password": "hunter2hunter2",
        "dsn": "postgresql://me:p%40ssw0rd@db/x",
        "endpoint": "https://user:in-url-pass@host",
        "conninfo": "host=x password='it''s' user=y",
    }
    texts = secret_texts(credential)
    assert {"hunter2hunter2", "p@ssw0rd", "p%40ssw0rd", "in-url-pass"} <= texts
    assert not {"db.example.org", "5432", "reporting"} & texts
    assert Masker([credential]).mask("db.example.org as reporting") == "db.example.org as reporting"


def test_data_is_masked_in_values_keys_and_structs_and_shared_when_clean():
    masker = Masker([{"password": "hunter2hunter2", "pin": 123456}])
    clean = {"a": [1, {"b": "fine"}]}
    assert masker.mask_data(clean) is clean
    assert masker.mask_data({"hunter2hunter2": ["x hunter2hunter2", 123456, None, 1.5]}) == {
        MASK: [f"x {MASK}", MASK, None, 1.5]
    }
    outcome = error("auth", "wrong password hunter2hunter2", details={"sent": b"hunter2hunter2"})
    masked = masker.mask_data(outcome)
    assert masked.error.message == f"wrong password {MASK}"
    assert masked.error.details == {"sent": MASK.encode()}


@given(size=st.integers(1, 40), pad=st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_a_stream_is_masked_across_its_chunks(size, pad):
    secret = "0123456789abcdefSECRET"
    body = b"-" * pad + secret.encode() + b"+" * 50 + base64.b64encode(b"x" + secret.encode())

    async def chunks():
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def collect():
        return b"".join([chunk async for chunk in Masker([secret]).mask_chunks(chunks())])

    masked = asyncio.run(collect())
    assert masked.startswith(b"-" * pad + MASK.encode() + b"+" * 50)
    assert masked.count(MASK.encode()) == 2


def test_an_empty_masker_changes_nothing():
    masker = Masker()
    assert not masker
    assert masker.mask("text") == "text" and masker.mask_bytes(b"x") == b"x"
    assert Masker([None, True, "", {"a": None}]).mask_data({"x": None}) == {"x": None}


def test_secrets_can_be_learned_later():
    masker = Masker()
    masker.add({"token": "later-secret"})
    assert masker.mask("later-secret") == MASK


@pytest.mark.serial
def test_two_hundred_secrets_cost_little_on_clean_text():
    chance = random.Random(1)
    masker = Masker([f"{chance.getrandbits(160):x}" for _ in range(200)])
    line = "an ordinary line of a log, with some words in it " * 4
    started = time.process_time()
    for _ in range(1000):
        masker.mask(line)
    assert time.process_time() - started < 1.0
