"""Bytes on the wire and on disk: schemas, records, revisions, batches. Imports nothing else of atomlog."""
