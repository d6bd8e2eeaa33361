"""`python -m noetl` is `noetl`."""

from noetl.clictl import main

main()
