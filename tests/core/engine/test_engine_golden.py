"""Logs outlive versions: every log of every release folds to the state it had."""

from __future__ import annotations

import msgspec
import pytest
from golden import LOGS, events_of, picture, plain, playbook_of, read

from noetl.core.engine.advance import fold
from noetl.core.engine.evolve import APPLIERS
from noetl.core.model.events import BODIES, Recorded, decode_body
from noetl.errors import CorruptLog

FILES = sorted(LOGS.glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden_logs_fold_to_the_states_they_had(path):
    kept = read(path)
    assert len(kept) >= 200
    for each in kept:
        book, events = playbook_of(each), events_of(each)
        half = len(events) // 2
        if half:
            assert plain(picture(fold(book, events[:half]))) == plain(each["half"]), each["name"]
        assert plain(picture(fold(book, events))) == plain(each["end"]), each["name"]


def test_golden_logs_know_every_event_that_the_engine_makes():
    told = {name for path in FILES for each in read(path) for _, _, name, _, _ in each["events"]}
    assert told == {name for name, _ in BODIES} - {"task.progress"}


def test_every_body_has_an_applier():
    assert set(APPLIERS) == set(BODIES.values())


def test_an_unknown_event_stops_the_replay():
    with pytest.raises(KeyError):
        decode_body("step.teleported", 1, b"{}")
    with pytest.raises(KeyError):
        decode_body("step.done", 99, b"{}")


@pytest.mark.parametrize("damage", ["gap", "twice", "foreign", "first"])
def test_a_damaged_log_is_never_folded_over(damage):
    each = read(FILES[0])[0]
    events = events_of(each)
    if damage == "gap":
        del events[3]
    elif damage == "twice":
        events.insert(3, events[3])
    elif damage == "foreign":
        events[3] = msgspec.structs.replace(events[3], execution_id="4711")
    else:
        del events[0]
    with pytest.raises(CorruptLog):
        fold(playbook_of(each), events)


def test_an_empty_log_has_no_state():
    with pytest.raises(CorruptLog):
        fold(playbook_of(read(FILES[0])[0]), [])


def test_a_half_read_log_goes_on_where_it_stopped():
    each = next(each for each in read(FILES[0]) if len(each["events"]) > 20)
    book, events = playbook_of(each), events_of(each)
    state = fold(book, events[:10])
    assert plain(picture(fold(book, events[10:], state))) == plain(each["end"])
    assert isinstance(events[0], Recorded)
