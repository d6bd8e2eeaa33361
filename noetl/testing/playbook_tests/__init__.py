"""Playbook tests: a playbook is run with mocked or recorded tools, and what came of it is compared.

`cases` reads test files, `stage` stands in for tools and secrets, `judge` compares, `recording` writes a test file
from an execution. `noetl test` is their command.
"""
