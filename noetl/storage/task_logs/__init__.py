"""Back ends of task logs."""
