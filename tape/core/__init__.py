"""What every part stands on: files, provenance, checks, statistics, the folder of a run."""
