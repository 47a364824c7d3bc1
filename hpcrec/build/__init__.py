"""From a checked configuration to objects, once; `session` has the way in, `open_session`. Imports nothing itself."""
