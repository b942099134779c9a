#!/usr/bin/env bash
# Trains encodings x seeds to retrieve pass keys, asks them up to eight times as far, and compares them:
#
#   TYPES="adape rope" SEEDS="0 1 2" bash script/compare_passkey.sh [settings]
#
#   TYPES, SEEDS, JOBS, NAME (passkey by default), EVALUATION: see script/comparison.sh; the last one
#                has flags of eval_retrieval.py, e.g. EVALUATION="--num_tests 50"
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
