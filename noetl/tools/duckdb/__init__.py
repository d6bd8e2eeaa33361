"""Tool kind `duckdb`."""
