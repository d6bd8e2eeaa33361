"""Reference documents generated from the grammar."""
