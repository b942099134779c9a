#!/usr/bin/env bash
# Trains encodings x seeds on passkey retrieval and compares them up to 8 times the training length:
#
#   TYPES="tape rope" SEEDS="0 1 2" bash script/compare_passkey.sh [settings]
#
#   TYPES, SEEDS, JOBS, NAME (default: passkey), EVALUATION: see script/comparison.sh; EVALUATION
#                holds flags of eval_retrieval.py, e.g. EVALUATION="--num_tests 50"
#   settings     of the training, e.g. data.keys=4 trainer.max_steps=5000
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/comparison.sh

experiment=passkey
NAME=${NAME:-passkey}
out=output/compare_$NAME
evaluate() { # run
    "$python" eval_retrieval.py --base_model "$1" --name passkey "${evaluation[@]}"
}
compare() { # runs
    "$python" -m retrieval.compare "$@" --out "$out"
}
comparison "$@"
