"""Sweeps: runs over values of settings and seeds, and the comparison of all."""
