"""The decoder: configuration, layers, what is prepared before them, cache, loss, checkpoints."""
