"""Class "masking": secrets are masked in every encoding, also where a text was cut before."""

from __future__ import annotations

import asyncio
import base64
import textwrap

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
