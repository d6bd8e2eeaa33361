"""What does work: one file per kind."""
