"""Routes about data: where it comes from and where it goes."""
