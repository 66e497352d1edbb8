"""State derived from the log, and the read that merges it."""
