#!/usr/bin/env bash
# The paper's addition experiment on one GPU, in time slices: bash script/gpu/addition.sh [settings]
#
#   TYPES        encodings, in this order; adape rope fire by default
#   SEEDS        0 by default
#   EXPERIMENT   addition_20 (the default) or addition_40
#   SLICE        seconds until everything is saved and the script exits with status 75; 540 by default
#   BATCH        problems decoded together in the evaluation; 4096 by default
#   settings     of the training, e.g. trainer.max_steps=10000
#
# Rerun the command until all encodings are trained (output/${EXPERIMENT}_${TYPE}_${SEED}), evaluated
# and compared in a figure. Each slice ends with steps, speed and share of the GPU's peak so far.
set -euo pipefail
SLICE=${SLICE:-540} exec bash "$(dirname "${BASH_SOURCE[0]}")/../sweep.sh" addition_gpu position \
    ${EXPERIMENT:+"recipe=$EXPERIMENT"} ${BATCH:+"batch=$BATCH"} -- "$@"
