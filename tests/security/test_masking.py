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
