"""The `noetl` command: finds the verb that was named, and turns whatever goes wrong into one clear line.

Starting is what a user waits for most often, so nothing is imported before it is needed: the
version is answered without click, a verb's file is imported when the verb is named, and the
engine, the compiler and rich are imported inside the verbs.

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
    """Run the command line and leave the process with its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    _open_streams()
    if words in (["--version"], ["-V"]):
        print(f"noetl {__version__}")
        sys.exit(0)
    from noetl.runtime.event_loop import GC_THRESHOLDS

    # What is imported stays: looking through it for garbage again and again is a tenth of the start.
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        from noetl.cli import app as program
    except KeyboardInterrupt:
        sys.exit(130)
    code = program.run(words)
    if arguments is not None:
        sys.exit(code)
    _leave(code)


def _open_streams() -> None:
    """Put nothing where a standard stream was closed (`>&-`), lest a file or a socket takes its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
            if stream.fileno() != number:
                os.dup2(stream.fileno(), number)
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("noetl-escaped", _escaped)
        sys.stdout.reconfigure(errors="noetl-escaped")


def _escaped(problem: UnicodeError) -> tuple[str, int]:
    """What the output's encoding does not have, as JSON writes it: so documents stay what they are."""
    assert isinstance(problem, UnicodeEncodeError)
    found = problem.object[problem.start : problem.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{found[i : i + 2].hex()}" for i in range(0, len(found), 2)), problem.end


def _leave(code: int) -> None:
    """End the process at once: taking the interpreter apart would be a fifth of a short command's time.

    Everything is closed by now; whoever asked to be called at the end is called, and both streams are
    flushed (to a reader that may have left)."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 1
    os._exit(code)


if __name__ == "__main__":
    main()
