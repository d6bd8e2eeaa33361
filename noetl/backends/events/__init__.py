"""Event stores."""
