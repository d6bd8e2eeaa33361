"""Progress is computed from events and shown as lines or as live rows."""

from __future__ import annotations

import pytest

from noetl.cli.output import display
from noetl.cli.output.display import LiveDisplay, PlainDisplay, describe_row, duration
from noetl.cli.output.progress import Progress
from noetl.cli.output.terminal import terminal
from noetl.core.model import events as ev
from noetl.core.model.outcome import error, ok


class Log:
    """Records events for a progress, one second after the other."""

    def __init__(self, sink) -> None:
        self.sink = sink
        self.seq = 0

    def __call__(self, *bodies: ev.Event) -> None:
        for body in bodies:
            self.seq += 1
            self.sink(ev.Recorded(execution_id="7", seq=self.seq, at=1000.0 + self.seq, body=body))


def begin() -> list[ev.Event]:
    return [ev.ExecutionRequested(playbook="d", path="shop"), ev.WorkflowStarted(entry="start")]


def step(name: str, number: int = 1) -> ev.StepScheduled:
    return ev.StepScheduled(step=name, step_run_id=f"7:{name}:{number}")


def done(name: str, number: int = 1) -> ev.StepDone:
    return ev.StepDone(step=name, step_run_id=f"7:{name}:{number}", output=ok(1))


def failed(name: str, number: int = 1) -> ev.StepFailed:
    return ev.StepFailed(step=name, step_run_id=f"7:{name}:{number}", output=error("timeout", "too slow"))


def task(name: str, do: str = "continue", outcome=None, **more) -> ev.TaskDone:
    return ev.TaskDone(
        step=name, step_run_id=f"7:{name}:1", task="fetch", kind="http", outcome=outcome or ok(), do=do, **more
    )


def loop(count: int, path=()) -> ev.LoopStarted:
    return ev.LoopStarted(step="fetch", step_run_id="7:fetch:1", count=count, path=path)


def iteration(*path: int) -> ev.IterationDone:
    return ev.IterationDone(step="fetch", step_run_id="7:fetch:1", path=path, output=ok())


def row_after(*bodies: ev.Event, name: str = "fetch"):
    progress = Progress()
    Log(progress.apply)(*begin(), *bodies)
    return progress.steps[name]


def test_a_step_runs_from_its_scheduling_to_its_end():
    row = row_after(step("fetch"))
    assert (row.state, row.runs) == ("running", 1)
    row = row_after(step("fetch"), done("fetch"))
    assert row.state == "done"
    assert row.seconds(now=99999.0) == 1.0


def test_a_failure_keeps_its_reason():
    row = row_after(step("fetch"), failed("fetch"))
    assert row.state == "failed"
    assert "timeout: too slow" in describe_row(row, 0)


def test_retries_are_counted():
    row = row_after(step("fetch"), task("fetch", "retry", error("server_error", "503")), task("fetch"), done("fetch"))
    assert row.retries == 1
    assert "1 retry" in describe_row(row, 0)


def test_a_loop_counts_its_iterations():
    row = row_after(step("fetch"), loop(3), iteration(0), iteration(2))
    assert row.loop == (3, 2, 0)
    assert describe_row(row, 0) == "running, 2 of 3 iterations"


def test_a_nested_loop_counts_the_innermost_iterations():
    row = row_after(step("fetch"), loop(2), loop(3, (0,)), iteration(0, 0), iteration(0, 1), loop(4, (1,)))
    assert row.loop == (7, 2, 0)


def test_an_empty_loop_is_complete():
    row = row_after(step("fetch"), loop(0), done("fetch"))
    assert row.loop == (0, 0, 0)
    assert "0 iterations" in describe_row(row, 0)


def test_a_step_that_runs_twice_is_running_until_both_have_ended():
    row = row_after(step("fetch"), step("fetch", 2), done("fetch"))
    assert row.state == "running"
    row = row_after(step("fetch"), step("fetch", 2), done("fetch"), done("fetch", 2))
    assert (row.state, row.runs) == ("done", 2)


def test_a_closed_gate_is_shown_as_parked():
    parked = ev.TokenParked(step="fetch", token="t")
    assert row_after(parked).state == "parked"
    assert row_after(parked, ev.StepSkipped(step="fetch", token="t")).state == "skipped"
    assert row_after(parked, step("fetch")).state == "running"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.1234, "0.12 s"), (59.4, "59 s"), (125, "2 min 05 s"), (7500, "2 h 05 min")],
)
def test_durations_are_formatted_with_units(seconds, words):
    assert duration(seconds) == words


def test_each_change_is_one_line(capsys):
    lines = PlainDisplay()
    log = Log(lines.event)
    log(*begin(), step("start"), task("start"), done("start"), step("fetch"), failed("fetch"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "execution 7 of shop",
        "start: running",
        "start: done in 2.00 s",
        "fetch: running",
        "fetch: failed in 1.00 s, timeout: too slow",
    ]


def test_lines_about_a_large_loop_are_few(capsys):
    lines = PlainDisplay()
    Log(lines.event)(*begin(), step("fetch"), loop(10_000), *(iteration(i) for i in range(10_000)), done("fetch"))
    said = capsys.readouterr().err.splitlines()
    assert len(said) < 10
    assert said[2] == "fetch: running, 0 of 10000 iterations"
    assert said[-1].endswith("10000 iterations")


def test_the_live_display_shows_steps_bars_retries_and_failures(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    live = LiveDisplay()
    log = Log(live.progress.apply)
    log(*begin(), step("start"), done("start"), step("fetch"), loop(4), iteration(0), task("fetch", "retry"))
    log(step("store"), failed("store"))
    live._console.print(live._render())
    picture = capsys.readouterr().err
    assert "✔ start" in picture
    assert "1/4" in picture
    assert "fetch  1 retry" in picture
    assert "✖ store" in picture
    assert "too slow" in picture


def test_the_live_display_fits_the_screen(monkeypatch):
    monkeypatch.setenv("LINES", "20")
    monkeypatch.setenv("COLUMNS", "100")
    live = LiveDisplay()
    log = Log(live.progress.apply)
    log(*begin())
    for number in range(100):
        log(step(f"s{number}"), *([done(f"s{number}")] if number != 3 else []))
    lines = [line for line in live._console.render_lines(live._render()) if line]
    text = "\n".join("".join(segment.text for segment in line) for line in lines)
    assert len(lines) <= 20
    assert "s3 " in text  # what runs is always shown
    assert "s99" in text
    assert "more steps" in text


def test_quiet_shows_nothing(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "quiet", True)
    shown = display.open_display()
    Log(shown.event)(*begin(), step("start"))
    shown.log("a line")
    shown.close()
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_progress_is_printed_as_lines():
    assert isinstance(display.open_display(), PlainDisplay)
