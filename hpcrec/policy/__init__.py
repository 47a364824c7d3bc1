"""When rows and gradients cross. Time, not bytes (those are ``exchange``)."""
