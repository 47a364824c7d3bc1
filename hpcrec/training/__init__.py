"""The training loop and what surrounds it: session, metrics, checkpoints, telemetry."""
