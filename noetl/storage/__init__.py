"""Storage: ports, and their back ends on memory, SQLite, Postgres, NATS and object stores."""
