#!/usr/bin/env bash
# Trains and evaluates encodings x seeds on addition; compares them in a table and a figure:
#
#   TYPES="tape rope" SEEDS="0 1 2" bash script/compare_add.sh [settings]
#
#   TYPES, SEEDS, JOBS, NAME (default: add), EVALUATION: see script/sweep.sh; EVALUATION holds
#                settings of script/eval_add.sh, e.g. EVALUATION="max_length=20 samples=50"
#   GRID         name of the evaluation; grid by default
#   settings     of the training, e.g. experiment=addition_20 trainer.max_steps=5000
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/sweep.sh" addition position ${GRID:+"grid='$GRID'"} -- "$@"
