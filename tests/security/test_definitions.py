"""Class "definitions": payloads of triggers and bodies of notifications cannot occupy the server with many templates."""

from __future__ import annotations

import time

import pytest

from noetl.errors import NoetlError
from noetl.server.notifications.rules import define_rule
from noetl.server.scheduling.backfills import Backfill
from noetl.server.scheduling.schedules import Schedule
from noetl.server.scheduling.triggers import define
from noetl.server.scheduling.webhooks import Webhook

SECONDS = 3.0
PAYLOADS = {
    "many loops": {f"k{n}": "{% for _ in range(90000) %}{% endfor %}" + str(n) for n in range(400)},
    "nested loops": {"k": [{"a": "{% for _ in range(90000) %}{% endfor %}" + str(n)} for n in range(400)]},
    "large texts": {f"k{n}": "{{ 'a' * (15000000 + " + str(n) + ") }}" for n in range(60)},
    "many templates": {f"k{n}": "{% if 1 %}" + str(n) + "{% endif %}" for n in range(30_000)},
    "long templates": {f"k{n}": "{% if 1 %}" + str(n) + "{% endif %}" + "{{ 1 }}" * 900 for n in range(400)},
}
PLACES = {
    "schedule": lambda payload: define(
        Schedule, "a", {"path": "p", "cron": "* * * * *", "payload": payload}, now=0.0
    ).render({}, {}),
    "webhook": lambda payload: define(Webhook, "a", {"path": "p", "payload": payload}, now=0.0).render({}, {}),
    "backfill": lambda payload: Backfill("a", "p", 0.0, 10.0, 1.0, payload=payload).payload_of(0),
    "notification": lambda payload: define_rule(
        "a", {"on": ["failed"], "to": {"kind": "http", "url": "http://localhost/", "body": payload}}, now=0.0
    ),
    "notification of events": lambda payload: define_rule(
        "a", {"on": ["event:a_*"], "to": {"kind": "http", "url": "http://localhost/", "body": payload}}, now=0.0
    ),
}


# The body of a notification of events is not evaluated before an event.
CASES = [
    (place, payload)
    for place in PLACES
    for payload in PAYLOADS
    if place != "notification of events" or payload in ("many templates", "long templates")
]


@pytest.mark.parametrize(("place", "payload"), CASES)
def test_the_templates_of_a_definition_are_bounded_together(place, payload):
    began = time.process_time()
    with pytest.raises(NoetlError, match="template limit exceeded"):
        PLACES[place](PAYLOADS[payload])
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("place", PLACES)
def test_ordinary_definitions_are_rendered(place):
    assert PLACES[place]({"a": "{{ 1 + 1 }}", "b": ["c" * 100_000], **{f"k{n}": n for n in range(2000)}})
