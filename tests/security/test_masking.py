"""Class "masking": secrets are masked in common encodings and with escaped characters, also where a text was cut before."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import re
import shlex
import textwrap
import time
import unicodedata
import urllib.parse

import pytest

from noetl.core.model.playbook import KeychainEntry
from noetl.core.templates.template import compile_value
from noetl.errors import SecretUnavailable, TemplateError
from noetl.runtime.masking import EDGE, Masker
from noetl.secrets.keychain import InstallationKeychain

SECRET = "correct-horse-battery-staple-0123456789/+abcdefghijklmnopqrstuvwxyz-ABCDEFGH"


def leaks(text: str) -> bool:
    """Whether a part of the secret, or of its base64, of twelve characters is readable."""
    forms = [SECRET, *(base64.b64encode(bytes(n) + SECRET.encode()).decode()[4:-4] for n in range(3))]
    plain = text.replace("\n", "").replace("\\n", "").replace("\r", "").replace(" ", "")
    return any(form[at : at + 12] in plain for form in forms for at in range(len(form) - 11))


@pytest.mark.parametrize("cut", [*range(EDGE + 6, len(SECRET), 7), len(SECRET)])
def test_a_cut_secret_is_masked_at_both_edges(cut):
    masker = Masker([SECRET])
    assert not leaks(masker.mask("the token is " + SECRET[:cut]))
    assert not leaks(masker.mask(SECRET[-cut:] + " was the token"))
    assert not leaks(str(masker.mask_data({"body": ["x" + SECRET[:cut]]})))


@pytest.mark.parametrize("width", [16, 57, 60, 64, 76])
@pytest.mark.parametrize("separator", ["\n", "\r\n", "\\n", "\n    "])
@pytest.mark.parametrize("before", ["", "a", "ab"])
def test_base64_with_line_breaks_is_masked(width, separator, before):
    encoded = base64.b64encode((before + SECRET).encode()).decode()
    text = "data:\n" + separator.join(textwrap.wrap(encoded, width)) + "\nend"
    assert not leaks(Masker([SECRET]).mask(text))
    assert not leaks(str(Masker([SECRET]).mask_data({"a": text})))


FORMS = {
    "utf-8 read as latin-1": lambda secret: secret.encode().decode("latin-1"),
    "utf-8 read as cp1252": lambda secret: secret.encode().decode("cp1252", "replace"),
    "composed": lambda secret: unicodedata.normalize("NFC", secret),
    "decomposed": lambda secret: unicodedata.normalize("NFD", secret),
    "octal": lambda secret: "".join(f"\\{byte:03o}" for byte in secret.encode()),
    "decimal entities": lambda secret: "".join(f"&#{ord(each)};" for each in secret),
    "hexadecimal entities": lambda secret: "".join(f"&#x{ord(each):x};" for each in secret),
    "escaped utf-16": lambda secret: json.dumps(secret)[1:-1],
    "base64 of utf-16": lambda secret: base64.b64encode(secret.encode("utf-16-le")).decode(),
    "base64 of big-endian utf-16": lambda secret: base64.b64encode(secret.encode("utf-16-be")).decode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", ["pässwörd-für-den-Zugang-42", "s😀cret-你好-token-0123", "correct-horse-battery"])
def test_a_secret_is_masked_in_other_encodings(form, secret):
    written = FORMS[form](secret)
    masked = Masker([secret]).mask(f"error near {written} in line 1")
    assert "error near " in masked and " in line 1" in masked
    assert not any(written[at : at + 12] in masked for at in range(len(written) - 11))


def test_texts_without_secrets_are_unchanged():
    masker = Masker([SECRET])
    for text in ("correct", "a correct answer", "plain\ntext", "", "cor"):
        assert masker.mask(text) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{ x | date }}",
        "{{ x | to_datetime('%d') }}",
        "{{ '2026-01-01' | date_add(x) }}",
        "{{ {x ~ ' ': 1} | xmlattr }}",
    ],
)
def test_messages_have_a_value_whole_or_not_at_all(template):
    value = SECRET * 3
    with pytest.raises(TemplateError) as caught:
        compile_value(template).evaluate({"x": value})
    assert not leaks(Masker([value]).mask(caught.value.message))


def test_errors_of_the_keychain_do_not_repeat_its_values(monkeypatch):
    from noetl.secrets.kinds import oauth2

    async def echo(request):
        raise request.unavailable(f"400 Bad Request: grant_type=client_credentials&client_secret={SECRET}")

    monkeypatch.setattr(oauth2, "resolve", echo)
    entry = KeychainEntry("x", "oauth2", {"token_url": "https://a", "client_id": "me", "client_secret": SECRET})
    with pytest.raises(SecretUnavailable) as caught:
        asyncio.run(InstallationKeychain().resolve([entry], ["x"]))
    assert "client_secret=***" in str(caught.value)
    assert not leaks(str(caught.value))


SECRETS = (
    "correct-horse/battery+staple=0123456789abcXYZ",
    "p@ss w0rd\"with'quotes&<>%$",
    "Zażółć-gęślą-jaźń-密码🔑secret",
    "tab\tand\\backslash\\\\secret$()`",
    "first-secret-line\nsecond-secret-line\nthird",
    "aB3$xY9!kL5@",
)


def _each(text: str, form: str) -> str:
    """The text with every character that is not a letter or digit in a numeric form."""
    return "".join(each if each.isascii() and each.isalnum() else form.format(ord(each)) for each in text)


def _bytes(text: str, form: str) -> str:
    """The text with every byte that is not a letter or digit in a numeric form."""
    return "".join(chr(byte) if byte < 128 and chr(byte).isalnum() else form.format(byte) for byte in text.encode())


ESCAPES = {
    "json": json.dumps,
    "json three times": lambda text: json.dumps(json.dumps(json.dumps(text))),
    "json with escaped slashes": lambda text: json.dumps(text).replace("/", "\\/"),
    "json for html": lambda text: (
        json.dumps(text).replace("<", "\\u003C").replace("&", "\\u0026").replace("'", "\\u0027")
    ),
    "repr": repr,
    "repr twice": lambda text: repr(repr(text)),
    "repr of bytes": lambda text: repr(text.encode()),
    "ascii": ascii,
    "html decimal": lambda text: _each(text, "&#{};"),
    "html hexadecimal": lambda text: _each(text, "&#x{:X};"),
    "html apos": lambda text: html.escape(text).replace("&#x27;", "&apos;"),
    "html 34 39": lambda text: html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    "html twice": lambda text: html.escape(html.escape(text)),
    "percent": lambda text: _bytes(text, "%{:02X}"),
    "percent lower": lambda text: _bytes(text, "%{:02x}"),
    "percent twice": lambda text: _bytes(text, "%25{:02X}"),
    "percent of a path": lambda text: urllib.parse.quote(text, safe="/~!$&'()*+,;=:@"),
    "percent of every byte": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "hexadecimal escapes": lambda text: _bytes(text, "\\x{:02x}"),
    "every byte as an escape": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
    "octal escapes": lambda text: _bytes(text, "\\{:03o}"),
    "hexadecimal with colons": lambda text: text.encode().hex(":"),
    "hexadecimal with spaces": lambda text: text.encode().hex(" "),
    "sql": lambda text: text.replace("'", "''"),
    "csv": lambda text: text.replace('"', '""'),
    "ini": lambda text: text.replace("%", "%%"),
    "shell": shlex.quote,
    "shell backslashes": lambda text: re.sub(r"([^\w\n])", r"\\\1", text),
    "regular expression": re.escape,
    "form": lambda text: urllib.parse.urlencode({"p": text}),
    "yaml": lambda text: json.dumps(text).replace("\\u00f3", "\\xF3"),
    "base64 with spaces": lambda text: " ".join(textwrap.wrap(base64.b64encode(text.encode() * 2).decode(), 30)),
    "json in a url": lambda text: urllib.parse.quote(json.dumps(text), safe="/"),
    "json in a url twice": lambda text: urllib.parse.quote(urllib.parse.quote(json.dumps(text))),
    "windows lines": lambda text: text.replace("\n", "\r\n"),
    "indented": lambda text: textwrap.indent(text, "    "),
    "one line": lambda text: text.replace("\n", " "),
}


# Attempts of each case, for the page of the suite.
ATTEMPTS = {"test_escaped_secrets_are_masked": 2 * len(SECRETS)}


@pytest.mark.parametrize("escape", ESCAPES)
def test_escaped_secrets_are_masked(escape):
    for secret in SECRETS:
        masker = Masker([secret])
        text = f"before {ESCAPES[escape](secret)} after"
        masked = masker.mask(text)
        assert "***" in masked, (secret, text)
        assert masked.startswith("before ") and masked.rstrip("'\"\\ ").endswith("after")
        assert "***" in str(masker.mask_data({"a": [text]})), (secret, text)


def test_a_secret_of_backslashes_does_not_slow_masking():
    masker = Masker(["abc" + "\\" * 30 + "\"'" * 10 + "x"])
    began = time.process_time()
    for _ in range(5):
        masker.mask("abc" + "\\" * 50_000 + "\"'" * 20_000)
    assert time.process_time() - began < 5


TOKEN = "kanarie-Sekret-0f3a9c77-ZZtop"
RECODED = {
    "utf-16": lambda text: text.encode("utf-16-le").decode("latin-1"),
    "utf-16 big endian": lambda text: text.encode("utf-16-be").decode("latin-1"),
    "utf-16 in json": lambda text: json.dumps(text.encode("utf-16-le").decode("latin-1")),
    "utf-16 as bytes": lambda text: repr(text.encode("utf-16-le")),
    "utf-16 as cat -v shows it": lambda text: "^@".join(text),
    "utf-16 in base64": lambda text: base64.b64encode(text.encode("utf-16-le")).decode(),
    "utf-16 big endian in base64": lambda text: base64.b64encode(b"x" + text.encode("utf-16-be")).decode(),
    "utf-16 in hexadecimal": lambda text: text.encode("utf-16-le").hex(),
    "upper case": str.upper,
    "lower case": str.lower,
    "color in it": lambda text: text[:5] + "\x1b[01;31m\x1b[K" + text[5:9] + "\x1b[m\x1b[K" + text[9:],
    "color in json": lambda text: json.dumps(text[:12] + "\x1b[0m" + text[12:]),
    "wrapped": lambda text: "\n".join(textwrap.wrap(text, 16)),
    "wrapped and indented": lambda text: "\n    ".join(textwrap.wrap(text, 16)),
    "wrapped in json": lambda text: json.dumps("\r\n".join(textwrap.wrap(text, 17))),
}
RECODED |= {
    "hexadecimal in lines": lambda text: "\n".join(textwrap.wrap(text.encode().hex(), 30)),
    "a name of a file": lambda text: re.sub(r"\W", "_", text),
    "a slug in upper case": lambda text: re.sub(r"\W", "-", text).upper(),
    "without signs": lambda text: re.sub(r"\W", "", text),
    "a dotted name": lambda text: text.replace("-", "."),
    "upper case in repr": lambda text: repr(text.upper() + "'\""),
    "upper case with escaped signs": lambda text: text.upper().replace("-", "\\-"),
}
ATTEMPTS["test_recoded_secrets_are_masked"] = 4


@pytest.mark.parametrize("recode", RECODED)
def test_recoded_secrets_are_masked(recode):
    """In a line, in data, in a stream of small chunks, and as a key."""
    masker = Masker([TOKEN])
    text = f"before {RECODED[recode](TOKEN)} after"

    async def chunks():
        for at in range(0, len(text), 7):
            yield text.encode()[at : at + 7]

    async def streamed():
        return b"".join([chunk async for chunk in masker.mask_chunks(chunks())]).decode()

    for masked in (masker.mask(text), str(masker.mask_data({"a": [text]})), asyncio.run(streamed())):
        assert "***" in masked and "9c77" not in masked.replace("\0", "").lower(), masked
        assert "before" in masked and "after" in masked
    assert "***" in str(masker.mask_data({text: 1}))


def test_a_text_of_signs_does_not_slow_the_search_for_derived_names():
    masker = Masker(["abcdef" + "-_." * 20 + "ghijkl" + "/" * 30 + "mnopqr"])
    began = time.process_time()
    for text in ("abcdef" + "-" * 200_000, ("abcdef" + "-" * 59) * 3000, ("abcdef" + "-_." * 20 + "ghijkl") * 2000):
        masker.mask(text)
    assert time.process_time() - began < 5


def test_derived_names_of_secrets_with_a_common_part_are_masked():
    masker = Masker(["password-1234-abcdef", "password-9876-uvwxyz"])
    assert masker.mask("a password_1234_abcdef and PASSWORD.9876.UVWXYZ b") == "a *** and *** b"


def test_texts_like_a_part_of_a_secret_are_kept():
    masker = Masker(["correct-horse-battery-staple", "short-one!"])
    for text in ("battery", "horse battery", "SHORT-ONE", "a correct horse"):
        assert masker.mask(text) == text


@pytest.mark.parametrize("width", [8, 9, 12, 20])
def test_lines_that_are_parts_of_a_secret_are_masked(width):
    masker = Masker([SECRET])
    for line in textwrap.wrap(SECRET, width):
        assert masker.mask(line) == "***" or len(line) < EDGE
        assert masker.mask(f"  {line}\n") == "  ***\n" or len(line) < EDGE


def test_numbers_that_are_secrets_are_masked():
    masker = Masker(["8392017564", "0.1875"])
    data = {"a": 8392017564, "b": [8392017564.0, 0.1875], "c": "8392017564", "d": 839201756, "e": 1.0}
    assert masker.mask_data(data) == {"a": "***", "b": ["***", "***"], "c": "***", "d": 839201756, "e": 1.0}


def test_every_text_of_an_event_but_its_identity_is_masked():
    """No class of events has a field with values of templates that is left out."""
    from typing import get_type_hints

    from noetl.core.model import events
    from noetl.worker.event_masking import _IDENTITY, mask_event

    seen = 0
    for kind in vars(events).values():
        if not (isinstance(kind, type) and issubclass(kind, events.Event)) or kind is events.Event:
            continue
        for name, hint in get_type_hints(kind).items():
            if name in _IDENTITY or not (hint is str or "str | None" in str(hint)):
                continue
            required = {"step": "s", "step_run_id": "r", "task": "t"}
            try:
                event = kind(
                    **{each: required[each] for each in kind.__struct_fields__ if each in required},
                    **{name: f"a {TOKEN}"},
                )
            except TypeError:
                continue  # it needs fields that only the server has
            seen += 1
            assert getattr(mask_event(Masker([TOKEN]), event), name) == "a ***", (kind, name)
    requested = events.ChildRequested(step="s", step_run_id="r", task="t", playbook=f"p/{TOKEN}", version=TOKEN)
    masked = mask_event(Masker([TOKEN]), requested)
    assert (masked.playbook, masked.version) == ("p/***", "***")
    assert seen >= 3


def test_attributes_of_spans_have_no_values_with_secret_names():
    from noetl.core.model.playbook import TracePolicy
    from noetl.observability.tracing import attributes_of

    policy = TracePolicy(
        attributes={"p": "{{ workload.password }}", "all": "{{ workload }}", "t": "{{ workload.team }}"}
    )
    made = attributes_of(policy, {"password": TOKEN, "team": "a", "deep": {"api_key": 12345678}}, "1")
    assert made["t"] == "a" and made["p"] == "***"
    assert TOKEN not in str(made) and "12345678" not in str(made)
