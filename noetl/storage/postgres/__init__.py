"""The Postgres database of an installation: connections, group commit, partitions."""
