"""Start the API of the quickstart, run its playbook with the noetl command, and print where the results are."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from api import ShopServer

HERE = Path(__file__).resolve().parent
SHOWN = Path(os.path.relpath(HERE))


def main() -> int:
    (HERE / "build").mkdir(exist_ok=True)
    server = ShopServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    arguments = ["run", "playbook.yaml", "--set", f"api_url={server.url}", *sys.argv[1:]]
    print(f"{SHOWN}$ noetl", " ".join(arguments), file=sys.stderr, flush=True)
    command = subprocess.Popen([sys.executable, "-m", "noetl.clictl", *arguments], cwd=HERE)
    while True:
        try:
            code = command.wait()
            break
        except KeyboardInterrupt:
            continue  # the command receives the same Ctrl-C and exits by itself
    server.shutdown()
    if code == 0:
        noetl = os.path.relpath(Path(sys.executable).parent / "noetl")
        print(
            f"\nRows:   {SHOWN}/build/shop.duckdb and {SHOWN}/build/revenue.parquet\n"
            f"Next:   {noetl} events last      list the events of the execution\n"
            f"        {noetl} status last      show the state of each step\n"
            f"        {noetl} replay last      compute the state from the log",
            file=sys.stderr,
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
