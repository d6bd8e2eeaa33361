"""Data formats and conversions: rows, Arrow tables, files, payload streams."""

import os

# Arrow allocates with the C library, whose freed memory a transfer returns to the operating system; its own allocators
# keep some for every thread. Read by Arrow when it is first used; a pool that the user has chosen is kept.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
