"""One rule per file, over the shared tree."""
