"""Output of the command line: terminal, live display, progress."""
