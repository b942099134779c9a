"""The commands of `tape` that train, and the table of all."""
