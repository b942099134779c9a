"""Writes the table, the rows and the picture of the losses that script/smollm2_free.sh measured."""

import argparse

from tape.analysis.extended_losses import publish

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("results", help="the folder that smollm2_free.sh writes")
parser.add_argument("into", help="the folder for the table")
given = parser.parse_args()
publish(given.results, given.into)
