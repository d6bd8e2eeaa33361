"""The benchmark harness: summaries of samples, engine and baseline, the page and its plots."""

import asyncio
import gc
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import msgspec
import pytest

from bench import __main__ as harness
from bench import peers, workloads
from bench.growth import metric
from bench.measurements import Measurement, measure_repeatedly, merge_turns, summarize
from bench.peers import PEERS, PeerResult
from bench.report import Environment, Record, growth_plot, page, plot, relative_speed, save, saved


def record(part, measurements, peer_results=()):
    conditions = Environment("2026-01-02 03:04", "abc", "0.1, 0.2, 0.3", "2 cores", "NoETL 1, Python 3.11")
    return Record(part, conditions, measurements, list(peer_results))


def test_a_measurement_has_the_median_and_the_spread_of_its_samples():
    made = summarize("noetl", "W1", "m", [3.0, 1.0, 2.0, 10.0], "ms", 12.5)
    assert made == Measurement("noetl", "W1", "m", 2.5, 1.0, 10.0, 4, "ms", 12.5)


def test_no_samples_is_an_error():
    with pytest.raises(ValueError, match="nothing was measured"):
        summarize("noetl", "W1", "m", [], "ms")


def test_a_micro_benchmark_is_repeated():
    values = iter([1.0, 3.0, 2.0])
    (made,) = measure_repeatedly("trivial", 3, lambda: [("one", next(values), "us")])
    assert (made.median, made.min, made.max, made.n, made.unit) == (2.0, 1.0, 3.0, 3, "us")
    assert made.rss_mb > 1


@pytest.fixture
def restore_gc():
    """Restore the interpreter settings that a warm workload changes."""
    thresholds, turn = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(turn)


def test_engine_and_baseline_are_measured_in_one_run(tmp_path, restore_gc):
    (case, *_) = workloads.cases("w1", quick=True)
    figures = asyncio.run(workloads.measure_case(replace(case, repeats=3), tmp_path, 2))
    assert [(each.engine, each.metric, each.n, each.unit) for each in figures] == [
        ("noetl", "1 noop step", 6, "ms"),
        ("noetl", "1 noop step, CPU", 2, "ms"),
        ("baseline", "1 noop step", 6, "ms"),
        ("baseline", "1 noop step, CPU", 2, "ms"),
    ]
    assert all(each.median > 0 for each in figures)
    assert figures[0].rss_mb > 10


def test_the_page_has_ratios_environment_and_spread():
    figures = [
        summarize("noetl", "W1", "step", [2.0, 4.0, 3.0], "ms", 50.0),
        summarize("baseline", "W1", "step", [1.5], "ms"),
        summarize("noetl", "store", "commits", [1234.5], "1/s"),
    ]
    text = page([record("w1", figures[:2]), record("store", figures[2:])])
    assert "| W1 | step | 3.00 ms | 2.00 to 4.00 | 3 | 50 MB | 1.50 ms | 50% |" in text
    assert "| store | commits | 1,234 1/s |" in text or "| store | commits | 1,235 1/s |" in text
    assert "| `python -m bench store` | 2026-01-02 03:04 | abc | 0.1, 0.2, 0.3 |" in text
    assert text.endswith("\n\n- 2 cores\n- NoETL 1, Python 3.11\n")


def test_a_part_replaces_only_its_own_record(tmp_path):
    old, new = (record("w1", [summarize("noetl", "W1", "step", [value], "ms")]) for value in (1.0, 2.0))
    other = record("store", [], [PeerResult(PEERS[0], [], "1.2")])
    for each in (old, other, new):
        save(each, tmp_path)
    assert saved(tmp_path, ["w1", "w2", "store"]) == [new, other]


def test_the_page_compares_peers_and_lists_their_errors():
    dbos, temporal = PEERS[:2]
    ours = [
        summarize("noetl", "W1", "1 noop step", [2.0], "ms"),
        summarize("noetl", "W3", "loop of 1,000 noop items", [5000], "items/s"),
    ]
    theirs = [
        summarize("dbos", "W1", "1 noop step", [8.0], "ms"),
        summarize("temporal", "W1", "1 noop step", [90.0], "ms"),
    ]
    theirs += [summarize("dbos", "W3", "loop of 1,000 noop items", [250], "items/s")]
    results = [
        PeerResult(dbos, theirs[:1] + theirs[2:], "1.2"),
        PeerResult(temporal, theirs[1:2], "3.4", "exited with 1: W3: too slow"),
    ]
    text = page([record("w1", ours, results)])
    assert "`python -m bench --peers w1`" in text
    assert "| W1 one execution of one task, warm | 2.00 ms | 8.00 ms | 90.0 ms | **4.0x** |" in text
    assert "| W3 fan-out of 1,000 | 5,000 items/s | 250 items/s |  | **20.0x** |" in text
    assert "temporal: Temporal (dev server, SQLite), 3.4; **exited with 1: W3: too slow**" in text


def test_repeated_measurements_are_merged():
    turns = [
        summarize("noetl", "W1", "step", samples, "ms", 50.0 + len(samples)) for samples in ([2.0], [9.0, 1.0], [3.0])
    ]
    assert merge_turns(turns) == [Measurement("noetl", "W1", "step", 3.0, 1.0, 9.0, 4, "ms", 52.0)]


def test_noetl_and_the_nearest_peer_alternate(monkeypatch):
    seen = []

    def ours(part, quick):
        seen.append(part)
        return [summarize("noetl", part, "m", [1.0], "ms")]

    def theirs(peer, workload, variables=None):
        seen.append(f"{peer.name} {workload}")
        return PeerResult(peer, [summarize(peer.name, workload, "m", [2.0], "ms")], "1.0")

    monkeypatch.setattr(harness, "_measure_in_process", ours)
    monkeypatch.setattr(harness.peers, "measure", theirs)
    measurements, results = harness.measure_with_peers("w1", quick=False)
    others = [peer.name for peer in PEERS[1:] if not peer.needs_postgres]
    assert seen == ["w1", "dbos W1"] * 3 + [f"{name} W1" for name in others]
    assert [(each.workload, each.n) for each in measurements] == [("w1", 3)]
    assert [(each.peer.name, each.measurements[0].n) for each in results] == [
        ("dbos", 3),
        *((name, 1) for name in others),
    ]
    assert harness.measure_with_peers("engine", quick=False)[1] == []


def test_the_embedded_engine_is_first_on_the_page():
    figures = [
        summarize("noetl", "W1", "server, 2 workers: step", [9.0], "ms"),
        summarize("noetl", "W5", "rows", [3.0], "ms"),
    ]
    text = page([record("server_workloads", figures)])
    assert text.index("| W5 | rows |") < text.index("| W1 | server, 2 workers: step |")


def test_a_peer_that_cannot_be_installed_has_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(peers.venv, "create", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    result = peers.measure(PEERS[0], "W1")
    assert (result.measurements, result.problem) == ([], "could not be installed: disk full")


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_has_a_script_that_compiles(peer):
    compile(peer.script.read_text(), peer.script, "exec")


def test_the_page_shows_scaling_and_plots_it():
    points = [
        summarize("noetl", "growth", metric("item", size), [cost], "us")
        for size, cost in ((100, 300), (1_000, 200), (10_000, 260))
    ]
    text = page([record("growth", points)])
    assert "| one item of a loop, by items | 100: 300 us | 1,000: 200 us | 10,000: 260 us |  | 1.30x |" in text
    drawing = ElementTree.fromstring(growth_plot(points))
    assert len(drawing.findall("{http://www.w3.org/2000/svg}circle")) == 3


def test_relative_speed_of_rates_and_durations():
    slow, fast = summarize("noetl", "W", "m", [50.0], "items/s"), summarize("baseline", "W", "m", [100.0], "items/s")
    assert relative_speed(slow, fast) == 0.5
    late, soon = summarize("noetl", "W", "m", [4.0], "ms"), summarize("baseline", "W", "m", [1.0], "ms")
    assert relative_speed(late, soon) == 0.25


def test_the_plot_has_a_bar_for_each_workload():
    figures = [summarize("noetl", "W1", "step", [3.0], "ms"), summarize("baseline", "W1", "step", [1.5], "ms")]
    root = ElementTree.fromstring(plot(figures))
    assert root.tag.endswith("svg")
    assert "2.0x" in [element.text for element in root]


def test_an_unknown_part_is_reported(capsys):
    with pytest.raises(SystemExit):
        harness.main(["w9"])
    assert "unknown part w9" in capsys.readouterr().err


def test_lines_are_measurements_of_the_selected_parts(monkeypatch, capsysbinary):
    made = summarize("noetl", "trivial", "one", [1.0], "us")
    monkeypatch.setattr(harness, "measure_part", lambda part, quick: iter([made]))
    harness.main(["--lines", "w1"])
    assert msgspec.json.decode(capsysbinary.readouterr().out, type=Measurement) == made


def test_the_page_beside_dlt_has_a_row_for_each_transfer_and_the_conditions():
    from bench.dlt_comparison import KINDS, table
    from bench.report import environment

    samples = {kind: {"noetl": [(100.0, 200.0), (300.0, 210.0)], "dlt": [(10.0, 700.0)]} for kind in KINDS}
    text = table(samples, 1000, 2, environment())
    assert text.count("| 200 rows/s | 10 rows/s | 20.0x | 210 MB | 700 MB |") == len(KINDS)
    assert "python -m bench.dlt_comparison 1000 2" in text and "load average" in text
