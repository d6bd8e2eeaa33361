"""The engine behind a command: `local` is the embedded engine, `remote` a server; commands use only `base`."""
