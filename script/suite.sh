#!/usr/bin/env bash
# Trains and evaluates encodings x synthetic tasks x seeds; writes one table and a heat map of each encoding:
#
#   bash script/suite.sh quick                           three encodings, three tasks
#   TYPES="mine rope" bash script/suite.sh [settings]
#
#   TASKS        of docs/suite.md; those of config/sweep/suite.yaml by default
#   TYPES        encodings
#   SEEDS, JOBS, NAME (default: suite), EVALUATION, SLICE: see script/sweep.sh; EVALUATION holds flags of
#                tape evaluate --task synthetic, e.g. EVALUATION="--samples 500"
#   settings     of the training, e.g. trainer.max_steps=10000 model.num_hidden_layers=4
#
# The table is in output/compare_${NAME}. Rerunning the command resumes the work.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
sweep=suite
if [[ ${1:-} == quick ]]; then
    sweep=suite_quick
    shift
fi
exec bash "$(dirname "${BASH_SOURCE[0]}")/sweep.sh" "$sweep" ${TASKS:+"vary.data='$TASKS'"} -- "$@"
