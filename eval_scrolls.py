"""Verifies and scores predictions for SCROLLS: python eval_scrolls.py --help."""

import sys

from tape.cli.__main__ import main

if __name__ == "__main__":
    main("scrolls-score", *sys.argv[1:])
