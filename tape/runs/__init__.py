"""A run's folder and its metrics."""
