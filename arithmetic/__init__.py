"""Addition of numbers longer than those of the training: problems, made on the fly."""
