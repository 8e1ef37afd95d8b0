"""One training step, a file per stage."""
