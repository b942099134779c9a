"""Sweeps: runs over values of settings and seeds, and the comparison of all (sweep.py).

The package lies outside `tape`, whose import takes seconds: a sweep that has finished only prints.
"""
