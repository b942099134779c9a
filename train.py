"""Pre-trains, fine-tunes or extends a decoder: python train.py position=tape (--help lists all)."""

from tape.cli.train import main

if __name__ == "__main__":
    main()
