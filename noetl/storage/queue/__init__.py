"""Where runs wait for workers, and the lines workers speak over."""
