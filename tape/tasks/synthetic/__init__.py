"""Synthetic tasks that tell encodings apart by the longest problems that they solve."""
