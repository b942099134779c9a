"""Training runs: what is written while they go on, how they continue, how they end."""
