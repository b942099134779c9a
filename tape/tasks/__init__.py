"""Generated tasks: pass keys and synthetic sequences."""
