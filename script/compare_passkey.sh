#!/usr/bin/env bash
# Trains encodings x seeds on passkey retrieval and compares them up to 8 times the training length:
#
#   TYPES="tape rope" SEEDS="0 1 2" bash script/compare_passkey.sh [settings]
#
#   TYPES, SEEDS, JOBS, NAME (default: passkey), EVALUATION: see script/sweep.sh; EVALUATION
#                holds flags of eval_retrieval.py, e.g. EVALUATION="--num_tests 50"
#   settings     of the training, e.g. data.keys=4 trainer.max_steps=5000
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/sweep.sh" passkey position -- "$@"
