"""The cost table and the flame graph, from stacks that a process has sampled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from bench import execution_cost, flame_graph

CODE = """
import sys
from bench import sampling
sampling.start(sys.argv[1])
def busy():
    total = 0
    for number in range(30_000_000):
        total += number
    return total
busy()
"""


def test_a_process_samples_its_stacks_by_cpu_time(tmp_path: Path) -> None:
    file = tmp_path / "server-0.stacks"
    subprocess.run([sys.executable, "-c", CODE, str(file)], check=True, cwd=Path(__file__).parents[2])
    found = execution_cost.read_stacks(file.read_text())
    busy = sum(count for stack, count in found.items() if stack and stack[-1].endswith(":busy"))
    assert busy > 50
    assert busy > 0.9 * sum(found.values())


def test_costs_are_divided_by_samples_and_stations(tmp_path: Path) -> None:
    (tmp_path / "server-0.stacks").write_text(
        "main;uvicorn/protocols/http:data_received;noetl/server/http/streams:send 30\n"
        "main;noetl/core/engine/advance:advance;msgspec/json:encode 60\nmain;asyncio/events:run 10\n"
    )
    (tmp_path / "worker-1.stacks").write_text("main;noetl/worker/runner:run 5\n")
    result = execution_cost._profile("one", 100, 2.0, tmp_path, [1.0, 0.5], 0.2)
    costs = {key: round(cost, 3) for key, cost in result.cost.items()}
    assert costs == {
        ("server", "event stream"): 3.0,
        ("server", "engine"): 6.0,
        ("server", "event loop"): 1.0,
        ("worker", "worker"): 5.0,
        ("Postgres", "all backends"): 2.0,
    }
    page = tmp_path / "page.md"
    page.write_text(f"# Cost\n\n{execution_cost.BEGIN}\nold\n{execution_cost.END}\n\nend\n")
    execution_cost.write(result, page)
    text = page.read_text()
    assert "| server | engine | 6.000 | 35.3 % |" in text
    assert "50 executions/s, 17.00 ms of CPU each" in text
    assert "old" not in text
    assert text.endswith("\n\nend\n")
    assert "noetl/worker/runner:run" in page.with_suffix(".svg").read_text()


def test_the_width_of_a_frame_is_its_share() -> None:
    picture = ElementTree.fromstring(flame_graph.svg("t", {("a", "b<c>"): 3, ("a", "d"): 1}))
    space = "{http://www.w3.org/2000/svg}"
    widths = {
        str(group.findtext(f"{space}title")): float(group.find(f"{space}rect").get("width") or 0)  # type: ignore[union-attr]
        for group in picture.iter(f"{space}g")
    }
    assert widths == {"a: 100.0 %": 1200.0, "b<c>: 75.0 %": 900.0, "d: 25.0 %": 300.0}
