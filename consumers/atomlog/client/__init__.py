"""The Python face of the store."""
