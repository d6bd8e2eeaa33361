"""What keeps data: one file per back end."""
