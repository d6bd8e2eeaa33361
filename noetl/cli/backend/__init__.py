"""The engine behind a command: embedded or remote."""
