"""Context extension: what each method of adapting a model to longer texts gives, side by side."""
