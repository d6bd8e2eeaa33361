"""A local cluster for development and tests: Postgres, NATS, servers and workers."""
