"""Start the quickstart's API, run its playbook with the command anyone would type, show what came of it."""

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
            continue  # the command got the same Ctrl-C; it ends by its own rules
    server.shutdown()
    if code == 0:
        noetl = os.path.relpath(Path(sys.executable).parent / "noetl")
        print(
            f"\nRows:   {SHOWN}/build/shop.duckdb and {SHOWN}/build/revenue.parquet\n"
            f"Look:   {noetl} events last      every event of the run\n"
            f"        {noetl} status last      how each step ended\n"
            f"        {noetl} replay last      the state, folded from the log again",
            file=sys.stderr,
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
