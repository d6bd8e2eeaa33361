"""The example runs on the embedded engine, from the circuits to the image."""

from __future__ import annotations

import base64
import json
import math
import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "angle_sweep.yaml"


def noetl(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NOETL_HOME": str(home), "MPLCONFIGDIR": str(home)}
    command = [sys.executable, "-m", "noetl.clictl", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)


def test_the_sweep_measures_the_cosine_and_keeps_an_image(tmp_path: Path):
    ran = noetl(tmp_path, "run", str(EXAMPLE), "--json")
    assert ran.returncode == 0, ran.stderr
    assert "warning" not in ran.stderr
    document = json.loads(ran.stdout)
    output = document["output"]
    points = output["data"]["points"]
    assert len(points) == 7
    for point in points:
        assert abs(point["z"] - math.cos(point["angle"])) < 0.1
    assert output["ref"]["meta"]["bytes"] > 1000
    assert base64.b64decode(output["data"]["png"]).startswith(b"\x89PNG")
    again = json.loads(noetl(tmp_path, "run", str(EXAMPLE), "--json").stdout)
    assert again["output"]["data"]["points"] == points  # the seed decides


def test_the_example_is_valid(tmp_path: Path):
    checked = noetl(tmp_path, "validate", str(EXAMPLE), "--format", "json")
    assert (checked.returncode, json.loads(checked.stdout)) == (0, [])
