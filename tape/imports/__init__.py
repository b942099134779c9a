"""Models of other programs: imported as checkpoints, and compared with transformers'."""
