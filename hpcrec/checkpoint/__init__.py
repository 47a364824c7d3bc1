"""A run on disk and back: the format of checkpoints, what of a session they hold, and who saves and loads it when."""
