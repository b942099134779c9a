"""Models that were trained on text, compared: encodings over seeds, and ablations."""
