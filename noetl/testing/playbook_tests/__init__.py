"""Playbook tests: run a playbook with mocked or recorded tools and compare the result with the expected one.

`cases` reads test files, `mocks` replaces tools and secrets, `assertions` compares, `recording` generates a test file
from an execution. `noetl test` is the command for them.
"""
