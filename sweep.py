"""Compares runs over settings and seeds: python sweep.py sweep=encodings 'vary.position=[rope]'."""

from tape.cli.sweep.command import main

if __name__ == "__main__":
    main()
