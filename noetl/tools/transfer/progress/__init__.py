"""What a load remembers: its cursor, the pages and objects that were loaded."""
