"""Logs are compatible across versions: every log of every release folds to its original state."""

from __future__ import annotations

import msgspec
import pytest
from golden import LOGS, events_of, plain, playbook_of, read, summary_of

from noetl.core.engine.advance import fold
from noetl.core.engine.evolve import APPLIERS
from noetl.core.model.events import BODIES, Recorded, decode_body
from noetl.errors import CorruptLog

FILES = sorted(LOGS.glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden_logs_fold_to_the_states_they_had(path):
    stored = read(path)
    assert stored
    for each in stored:
        book, events = playbook_of(each), events_of(each)
        half = len(events) // 2
        if half:
            assert plain(summary_of(fold(book, events[:half]))) == plain(each["half"]), each["name"]
        assert plain(summary_of(fold(book, events))) == plain(each["end"]), each["name"]


def test_golden_logs_contain_many_executions_and_every_event_type():
    assert sum(len(read(path)) for path in FILES) >= 200
    found = {name for path in FILES for each in read(path) for _, _, name, _, _ in each["events"]}
    assert found == {name for name, _ in BODIES} - {"task.progress"}


def test_every_body_has_an_applier():
    assert set(APPLIERS) == set(BODIES.values())


def test_an_unknown_event_stops_the_replay():
    with pytest.raises(KeyError):
        decode_body("step.unknown", 1, b"{}")
    with pytest.raises(KeyError):
        decode_body("step.done", 99, b"{}")


@pytest.mark.parametrize("damage", ["gap", "twice", "foreign", "first"])
def test_a_damaged_log_is_rejected(damage):
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


def test_folding_can_continue_from_a_partial_state():
    each = next(each for each in read(FILES[0]) if len(each["events"]) > 20)
    book, events = playbook_of(each), events_of(each)
    state = fold(book, events[:10])
    assert plain(summary_of(fold(book, events[10:], state))) == plain(each["end"])
    assert isinstance(events[0], Recorded)
