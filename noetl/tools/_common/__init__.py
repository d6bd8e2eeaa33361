"""What several tool kinds share."""
