"""Attention backends, masks, and the values that are averaged."""
