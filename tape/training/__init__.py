"""Training runs: models, checkpoints, logging, resumption and reports."""
