"""Real sources in: JSON lines and the history of a git repository. Importing twice adds nothing."""
