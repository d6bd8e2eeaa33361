"""Several threads may read first: the event decoders are created by one of them."""

from __future__ import annotations

import subprocess
import sys

READ = """
import sys, threading
sys.setswitchinterval(1e-6)
from noetl.storage.events.event_rows import decode_row, encode_json
from noetl.core.model.events import StepDone, TaskDone
from noetl.core.model.outcome import ErrorInfo, Outcome

output = Outcome("error", data={"a": 1}, error=ErrorInfo("python", "no"))
bodies = [StepDone("s", "1:s:1", output), TaskDone("s", "1:s:1", "t", "python", output)]
rows = [encode_json([[0.0, body.NAME, 1, None, body]]) for body in bodies]
together = threading.Barrier(4)

def read(data):
    together.wait()
    for _ in range(50):
        decode_row("1", 1, 1, data)

threads = [threading.Thread(target=read, args=(rows[number % 2],)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_concurrent_first_reads_create_the_decoders_once():
    for _ in range(6):  # unguarded, about one process in four dies of it
        ran = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
