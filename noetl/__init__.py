"""NoETL: declarative YAML workflows over APIs, databases and scripts."""

__version__ = "0.1.0"
