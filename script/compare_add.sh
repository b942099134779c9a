#!/usr/bin/env bash
# Trains and evaluates encodings x seeds on addition; compares them in a table and a figure:
#
#   TYPES="tape rope" SEEDS="0 1 2" bash script/compare_add.sh [settings]
#
#   TYPES, SEEDS, JOBS, NAME (default: add), EVALUATION: see script/comparison.sh; EVALUATION holds
#                settings of script/eval_add.sh, e.g. EVALUATION="max_length=20 samples=50"
#   GRID         name of the evaluation; grid by default
#   settings     of the training, e.g. experiment=addition_20 trainer.max_steps=5000
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/comparison.sh

experiment=addition
NAME=${NAME:-add}
out=output/compare_$NAME
GRID=${GRID:-grid}
evaluation+=("name=$GRID")
evaluate() { # run
    "$python" -m arithmetic.evaluate model="$1" "${evaluation[@]}"
}
compare() { # runs
    "$python" -m arithmetic.compare "$@" --name "$GRID" --out "$out"
}
comparison "$@"
