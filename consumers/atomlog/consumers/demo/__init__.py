"""`atomlog demo`: the main job on notes written for it, every claim checked."""
