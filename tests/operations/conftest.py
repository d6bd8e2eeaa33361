"""The command line with an installation of its own."""

from tests.cli.conftest import default_verbosity, folder, noetl, playbook, start  # noqa: F401 - fixtures
