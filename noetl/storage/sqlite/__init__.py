"""The SQLite database file and the locks of the processes that use it."""
