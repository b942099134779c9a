"""Verifies and scores predictions for SCROLLS: python eval_scrolls.py --help."""

from scrolls.score import main

if __name__ == "__main__":
    main()
