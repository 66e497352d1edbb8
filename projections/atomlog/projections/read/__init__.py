"""The read: one function that merges the projections at fixed positions into a page with a receipt."""
