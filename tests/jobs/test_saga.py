"""The job `examples/jobs/saga`: booked as a whole, or cancelled as a whole, also after a kill."""

from __future__ import annotations

from tests.cli.test_executions import wait_for
from tests.jobs.conftest import JOBS

SAGA = JOBS / "saga"


def test_a_trip_is_booked_as_a_whole(noetl, stub):
    service = stub(SAGA / "stub.py")
    answer = noetl("run", str(SAGA / "playbook.yaml"), "--json", "--set", f"api={service.url}")
    assert answer.code == 0, answer.err
    assert {(each["what"], each["status"]) for each in service.get("/bookings")} == {
        ("flight", "booked"), ("room", "booked"), ("car", "booked"),
    }  # fmt: skip
    assert answer.json["output"]["data"]["what"] == "car"


def test_what_was_booked_is_cancelled_in_reverse_order(noetl, stub):
    service = stub(SAGA / "stub.py", "car")
    answer = noetl("run", str(SAGA / "playbook.yaml"), "--json", "--set", f"api={service.url}")
    assert answer.code == 1
    assert "no car in siena" in str(answer.json["error"]) or "409" in answer.json["error"]["message"]
    log = service.get("/log")
    assert log[0] == "book flight rome" and log[-1] == "cancel flight rome"
    assert sorted(log[1:3]) == ["book room rome", "book room siena"]
    assert sorted(log[3:5]) == ["cancel room rome", "cancel room siena"]


def test_a_killed_saga_is_completed(noetl, start, stub, folder):
    """The process is killed while it waits for a booking; the resumed one cancels every booking once."""
    service = stub(SAGA / "stub.py", "car")
    text = (SAGA / "playbook.yaml").read_text()
    hold = "      - { name: hold, kind: shell, cmd: 'while [ ! -e go ]; do sleep 0.05; done' }\n"
    head, tail = text.split("  - step: car\n    tool:\n")
    (folder / "saga.yaml").write_text(f"{head}  - step: car\n    tool:\n{hold}{tail}")
    process = start("run", "saga.yaml", "--set", f"api={service.url}")
    wait_for(lambda: len(service.get("/bookings")) == 3)
    process.kill()
    process.wait()
    (folder / "go").touch()
    answer = noetl("resume", "last", "--json")
    assert answer.code == 1, answer.err
    log = service.get("/log")
    assert sorted(log) == sorted(
        [f"{verb} {what}" for verb in ("book", "cancel") for what in ("flight rome", "room rome", "room siena")]
    )
    assert log[-1] == "cancel flight rome"
