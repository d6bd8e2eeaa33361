"""The installation's own Postgres database: connections, group commit, partitions."""
