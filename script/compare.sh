#!/usr/bin/env bash
# Trains encodings x seeds on text and compares their perplexity at 1, 2 and 4 times the length:
#
#   TYPES="tape rope" SEEDS="0 1 2" bash script/compare.sh [settings]
#
#   TYPES, SEEDS, JOBS, NAME (default: encodings): see script/sweep.sh
#   EXPERIMENT   text by default, each encoding at its own learning rate; compare_quick takes minutes;
#                any of config/experiment works
#   EVALUATION   flags of tape perplexity
#   BASELINE     reference row of the comparison; rope by default
#   settings     of the training, e.g. data=text data.files=corpus/ length=512
#
# Failed runs are listed below the table, and the exit status is 1. Rerunning the command resumes the
# work.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
[[ ${EXPERIMENT:-} != compare_quick ]] || export SEEDS=${SEEDS:-0 1 2}
NAME=${NAME:-encodings} exec bash "$(dirname "${BASH_SOURCE[0]}")/sweep.sh" encodings \
    ${EXPERIMENT:+"recipe=$EXPERIMENT"} ${BASELINE:+"baseline='$BASELINE'"} -- "$@"
