"""Signatures of webhooks, with the examples of the services' own documentation."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from noetl.errors import AccessRefused, RequestRefused
from noetl.server.scheduling.signatures import (
    PRESETS,
    HmacFormat,
    check_age,
    delivery_id,
    handshake,
    signature,
    verify,
)

# https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
GITHUB_SECRET, GITHUB_BODY = "It's a Secret to Everybody", b"Hello, World!"
GITHUB_SIGNATURE = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
# https://api.slack.com/authentication/verifying-requests-from-slack
SLACK_SECRET, SLACK_TIMESTAMP = "8f742231b10e8888abcd99yyyzzz85a5", "1531420618"
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&"
    b"channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&"
    b"response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&"
    b"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
SLACK_SIGNATURE = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"


def check(preset: str, secret: str | list[str], headers: dict[str, str], body: bytes, form: HmacFormat | None = None):
    secrets = [secret] if isinstance(secret, str) else secret
    lowered = {name.lower(): value for name, value in headers.items()}
    return verify(preset, form or PRESETS[preset], secrets, lowered, body)


def test_github_signs_the_body_and_names_the_delivery():
    headers = {"X-Hub-Signature-256": GITHUB_SIGNATURE, "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}
    found = check("github", GITHUB_SECRET, headers, GITHUB_BODY)
    assert found is not None and found.id == "72d3162e-cc78-11e3-81ab-4c9367dc0958"
    assert check("github", GITHUB_SECRET, headers, GITHUB_BODY + b" ") is None
    assert check("github", "another", headers, GITHUB_BODY) is None
    assert check("github", ["another", GITHUB_SECRET], headers, GITHUB_BODY) is not None
    assert check("github", GITHUB_SECRET, {"X-Hub-Signature": GITHUB_SIGNATURE}, GITHUB_BODY) is None
    check_age(found, PRESETS["github"], 0.0, 300.0)  # it has no timestamp


def test_slack_signs_version_timestamp_and_body():
    headers = {"X-Slack-Signature": SLACK_SIGNATURE, "X-Slack-Request-Timestamp": SLACK_TIMESTAMP}
    found = check("slack", SLACK_SECRET, headers, SLACK_BODY)
    assert found is not None and found.timestamp == 1531420618
    assert check("slack", SLACK_SECRET, {**headers, "X-Slack-Request-Timestamp": "1531420619"}, SLACK_BODY) is None
    check_age(found, PRESETS["slack"], 1531420618 + 300, 300.0)
    with pytest.raises(AccessRefused, match="within 300 s"):
        check_age(found, PRESETS["slack"], 1531420618 + 301, 300.0)
    assert delivery_id("slack", found, {"event_id": "Ev01"}) == "Ev01"
    assert delivery_id("slack", found, {"command": "/x"}) == SLACK_SIGNATURE.removeprefix("v0=")


def test_stripe_signs_with_several_keys_during_rotation():
    body = b'{"id": "evt_1NG8Du2eZvKYlo2CUI79vXWy", "object": "event", "type": "payment_intent.succeeded"}'
    right = hmac.new(b"whsec_test", b"1492774577." + body, hashlib.sha256).hexdigest()
    header = (
        f"t=1492774577,v1={'0' * 64},v1={right},v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"
    )
    found = check("stripe", "whsec_test", {"Stripe-Signature": header}, body)
    assert found is not None and found.timestamp == 1492774577
    assert delivery_id("stripe", found, {"id": "evt_1NG8Du2eZvKYlo2CUI79vXWy"}) == "evt_1NG8Du2eZvKYlo2CUI79vXWy"
    for wrong in (f"t=1492774578,v1={right}", f"t=1492774577,v0={right}", f"v1={right}", "", "t=,v1=", "nonsense"):
        assert check("stripe", "whsec_test", {"Stripe-Signature": wrong}, body) is None


@pytest.mark.parametrize("encoding", ["hex", "base64"])
@pytest.mark.parametrize("algorithm", ["sha1", "sha256", "sha384", "sha512"])
def test_a_custom_format_is_verified(encoding, algorithm):
    form = HmacFormat("X-Sig", algorithm, "v=", encoding, "X-Time", "{timestamp}:{body}:end", "X-Id")
    form.check()
    sent = {"X-Sig": "v=" + signature(form, "s3cret", "100", b"\x00body\xff"), "X-Time": "100", "X-Id": "d-1"}
    found = check("hmac", "s3cret", sent, b"\x00body\xff", form)
    assert found is not None and (found.id, found.timestamp) == ("d-1", 100)
    assert check("hmac", "s3cret", {**sent, "X-Time": "101"}, b"\x00body\xff", form) is None
    assert check("hmac", "s3cret", {**sent, "X-Sig": ""}, b"\x00body\xff", form) is None


def test_a_format_that_cannot_be_verified_is_refused():
    for form in (
        HmacFormat("X", signed="{timestamp}"),
        HmacFormat("X", signed="{timestamp}{body}"),
        HmacFormat("X", timestamp_header="T"),
    ):
        with pytest.raises(RequestRefused, match="signed"):
            form.check()


def test_a_request_without_id_and_timestamp_is_a_delivery_of_its_own():
    form = HmacFormat("X-Sig")
    found = check("hmac", "s", {"X-Sig": signature(form, "s", "", b"{}")}, b"{}", form)
    assert found is not None and found.id is None


def test_checks_of_an_address_are_answered():
    assert handshake("slack", {}, {"type": "url_verification", "challenge": "3eZbrw1aB"}) == {"challenge": "3eZbrw1aB"}
    assert handshake("github", {"x-github-event": "ping"}, {"zen": "Design for failure."}) == {"status": "ok"}
    assert handshake("github", {"x-github-event": "push"}, {}) is None
    assert handshake("stripe", {}, {"type": "url_verification", "challenge": "x"}) is None
