"""Settings of commands: the files in config/, their types and bounds, and Hydra, which composes
them."""
