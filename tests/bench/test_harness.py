"""The harness: figures from samples, both sides of a workload, the page and its plot."""

import asyncio
import gc
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import msgspec
import pytest

from bench import __main__ as harness
from bench import peers, workloads
from bench.figures import Figure, collected, figure, merged
from bench.growth import metric
from bench.peers import PEERS, Told
from bench.report import growth_plot, nearness, page, plot


def test_a_figure_has_the_median_and_the_spread_of_its_samples():
    made = figure("noetl", "W1", "m", [3.0, 1.0, 2.0, 10.0], "ms", 12.5)
    assert made == Figure("noetl", "W1", "m", 2.5, 1.0, 10.0, 4, "ms", 12.5)


def test_nothing_measured_is_an_error():
    with pytest.raises(ValueError, match="nothing was measured"):
        figure("noetl", "W1", "m", [], "ms")


def test_a_micro_module_is_measured_as_often_as_asked():
    values = iter([1.0, 3.0, 2.0])
    (made,) = collected("trivial", 3, lambda: [("one", next(values), "us")])
    assert (made.median, made.min, made.max, made.n, made.unit) == (2.0, 1.0, 3.0, 3, "us")
    assert made.rss_mb > 1


@pytest.fixture
def unsettled():
    """What a warm workload sets up for its process ends with the test."""
    thresholds, turn = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(turn)


def test_both_sides_of_a_workload_are_measured_in_one_run(tmp_path, unsettled):
    (case, *_) = workloads.cases("w1", quick=True)
    figures = asyncio.run(workloads.measure_case(replace(case, repeats=3), tmp_path, 2))
    assert [(each.engine, each.metric, each.n, each.unit) for each in figures] == [
        ("noetl", "1 noop step", 6, "ms"),
        ("noetl", "1 noop step, CPU", 2, "ms"),
        ("limit", "1 noop step", 6, "ms"),
        ("limit", "1 noop step, CPU", 2, "ms"),
    ]
    assert all(each.median > 0 for each in figures)
    assert figures[0].rss_mb > 10


def test_the_page_tells_ratios_machine_and_spread():
    figures = [
        figure("noetl", "W1", "step", [2.0, 4.0, 3.0], "ms", 50.0),
        figure("limit", "W1", "step", [1.5], "ms"),
        figure("noetl", "store", "commits", [1234.5], "1/s"),
    ]
    text = page(figures)
    assert "| W1 | step | 3.00 ms | 2.00 to 4.00 | 3 | 50 MB | 1.50 ms | 50% |" in text
    assert "| store | commits | 1,234 1/s |" in text or "| store | commits | 1,235 1/s |" in text
    assert "Python 3." in text and "cores" in text and "NoETL " in text


def test_the_page_sets_us_beside_the_peers_and_tells_what_they_could_not_do():
    dbos, temporal = PEERS[:2]
    ours = [
        figure("noetl", "W1", "1 noop step", [2.0], "ms"),
        figure("noetl", "W3", "loop of 1,000 noop items", [5000], "items/s"),
    ]
    theirs = [figure("dbos", "W1", "1 noop step", [8.0], "ms"), figure("temporal", "W1", "1 noop step", [90.0], "ms")]
    theirs += [figure("dbos", "W3", "loop of 1,000 noop items", [250], "items/s")]
    told = [
        Told(dbos, theirs[:1] + theirs[2:], "1.2"),
        Told(temporal, theirs[1:2], "3.4", "ended with 1: W3: too slow"),
    ]
    text = page([*ours, *theirs], told=told)
    assert "| W1 one execution of one task, warm | 2.00 ms | 8.00 ms | 90.0 ms | **4.0x** |" in text
    assert "| W3 fan-out of 1,000 | 5,000 items/s | 250 items/s |  | **20.0x** |" in text
    assert "temporal: Temporal (dev server, SQLite), 3.4; **ended with 1: W3: too slow**" in text


def test_turns_of_one_figure_become_one():
    turns = [
        figure("noetl", "W1", "step", samples, "ms", 50.0 + len(samples)) for samples in ([2.0], [9.0, 1.0], [3.0])
    ]
    assert merged(turns) == [Figure("noetl", "W1", "step", 3.0, 1.0, 9.0, 4, "ms", 52.0)]


def test_we_and_the_nearest_peer_take_turns(monkeypatch):
    seen = []

    def ours(part, quick):
        seen.append(part)
        return [figure("noetl", part, "m", [1.0], "ms")]

    def theirs(peer, workloads, given=None):
        seen.append(f"{peer.name} {' '.join(workloads)}")
        return Told(peer, [figure(peer.name, name, "m", [2.0], "ms") for name in workloads], "1.0")

    monkeypatch.setattr(harness, "_in_a_process", ours)
    monkeypatch.setattr(harness.peers, "measure", theirs)
    figures, told = harness.measure_beside(("w1", "w4", "engine"), quick=False)
    assert seen[:9] == ["w1", "dbos W1"] * 3 + ["w4", "dbos W4", "engine"]
    assert seen[9:] == [f"{peer.name} W1 W4" for peer in PEERS[1:] if not peer.needs_postgres]
    assert [(each.workload, each.n) for each in figures] == [("w1", 3), ("w4", 1), ("engine", 1)]
    assert [(each.workload, each.n) for each in told[0].figures] == [("W1", 3), ("W4", 1)]


def test_the_embedded_engine_stands_first_on_the_page():
    figures = [
        figure("noetl", "W1", "server, 2 workers: step", [9.0], "ms"),
        figure("noetl", "W5", "rows", [3.0], "ms"),
    ]
    text = page(figures)
    assert text.index("| W5 | rows |") < text.index("| W1 | server, 2 workers: step |")


def test_a_peer_that_cannot_be_installed_is_told_of(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(peers.venv, "create", lambda *_, **__: (_ for _ in ()).throw(OSError("no room")))
    told = peers.measure(PEERS[0], ("W1",))
    assert (told.figures, told.problem) == ([], "could not be installed: no room")


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_has_a_script_that_compiles(peer):
    compile(peer.script.read_text(), peer.script, "exec")


def test_the_page_tells_how_cost_grows_and_draws_it():
    points = [
        figure("noetl", "growth", metric("item", size), [cost], "us")
        for size, cost in ((100, 300), (1_000, 200), (10_000, 260))
    ]
    text = page(points)
    assert "| an item, in a loop of | 100: 300 us | 1,000: 200 us | 10,000: 260 us |  | 1.30x |" in text
    drawing = ElementTree.fromstring(growth_plot(points))
    assert len(drawing.findall("{http://www.w3.org/2000/svg}circle")) == 3


def test_a_rate_and_a_time_are_near_their_limit_in_the_same_sense():
    slow, fast = figure("noetl", "W", "m", [50.0], "items/s"), figure("limit", "W", "m", [100.0], "items/s")
    assert nearness(slow, fast) == 0.5
    late, soon = figure("noetl", "W", "m", [4.0], "ms"), figure("limit", "W", "m", [1.0], "ms")
    assert nearness(late, soon) == 0.25


def test_the_plot_is_a_drawing_with_a_bar_for_each_workload():
    figures = [figure("noetl", "W1", "step", [3.0], "ms"), figure("limit", "W1", "step", [1.5], "ms")]
    root = ElementTree.fromstring(plot(figures))
    assert root.tag.endswith("svg")
    assert "2.0x" in [element.text for element in root]


def test_a_part_that_is_not_there_is_named(capsys):
    with pytest.raises(SystemExit):
        harness.main(["w9"])
    assert "there is no part w9" in capsys.readouterr().err


def test_lines_are_figures_of_the_asked_parts(monkeypatch, capsysbinary):
    made = figure("noetl", "trivial", "one", [1.0], "us")
    monkeypatch.setattr(harness, "measure_part", lambda part, quick: iter([made]))
    harness.main(["--lines", "w1"])
    assert msgspec.json.decode(capsysbinary.readouterr().out, type=Figure) == made
