"""Drafts a column map and a configuration from a look at tables: guesses, each with its reason, for a user to read."""
