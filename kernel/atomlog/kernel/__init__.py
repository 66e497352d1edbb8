"""What a record is, when a write is allowed, and the log as an interface."""
