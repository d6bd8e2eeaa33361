"""The entry point of the `noetl` command.

Users wait for the start of the command most often, so nothing is imported before it is needed: `--version` does not
import click, the module of a command is imported when the command is used, and the engine, the compiler and rich are
imported inside commands.

Exit codes: 0 done, 1 the execution failed, 2 usage, 3 invalid playbook, 4 cannot connect,
124 timed out, 130 interrupted.
"""

from __future__ import annotations

import atexit
import codecs
import gc
import io
import os
import sys
from collections.abc import Sequence

from noetl import __version__


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    _open_streams()
    if given in (["--version"], ["-V"]):
        print(f"noetl {__version__}")
        sys.exit(0)
    from noetl.runtime.event_loop import START_GC_THRESHOLDS

    # Imported modules stay alive: collecting garbage among them takes a tenth of the start-up time.
    gc.set_threshold(*START_GC_THRESHOLDS)
    try:
        from noetl.cli import app
    except KeyboardInterrupt:
        sys.exit(130)
    code = app.run(given)
    if arguments is not None:
        sys.exit(code)
    _exit(code)


def _open_streams() -> None:
    """Open a null device for a closed standard stream (`>&-`), so that no other file gets its descriptor."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - until the process ends
            if stream.fileno() != number:
                os.dup2(stream.fileno(), number)
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("noetl-escaped", _escaped)
        sys.stdout.reconfigure(errors="noetl-escaped")


def _escaped(problem: UnicodeError) -> tuple[str, int]:
    """Write characters that the encoding of stdout does not have as JSON escapes, so that documents stay valid."""
    assert isinstance(problem, UnicodeEncodeError)
    found = problem.object[problem.start : problem.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{found[i : i + 2].hex()}" for i in range(0, len(found), 2)), problem.end


def _exit(code: int) -> None:
    """End the process at once: shutting down the interpreter would take a fifth of a short command's time.

    Resources are closed by now; exit handlers are called, and both streams are flushed (the reader may have closed
    them)."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 1
    os._exit(code)


if __name__ == "__main__":
    main()
