#!/usr/bin/env bash
# Trains encodings x seeds on text and compares their perplexity at 1, 2 and 4 times the length:
#
#   TYPES="tape rope" SEEDS="0 1 2" bash script/compare.sh [settings]
#
#   TYPES, SEEDS, JOBS, NAME (default: encodings): see script/comparison.sh
#   EXPERIMENT   compare by default; compare_quick takes minutes; any of config/experiment works
#   EVALUATION   flags of python -m tape.evaluation.perplexity
#   BASELINE     reference row of the comparison; rope by default
#   LAUNCHER     trains by Hydra multirun: joblib (local processes), submitit_slurm, submitit_local
#                (EXTRAS=dev,launchers bash script/setup.sh); missing runs are then trained here
#   settings     of the training, e.g. data=text data.files=corpus/ length=512
#
# Failed runs are listed below the table, and the exit status is 1. Rerunning the command resumes the
# work.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/comparison.sh

experiment=${EXPERIMENT:-compare}
NAME=${NAME:-encodings}
out=output/compare_$NAME
partial=yes
if [[ $experiment == compare_quick ]]; then
    evaluation=(--stride 4096 "${evaluation[@]}") # a quarter of the windows
fi
evaluate() { # run
    local length
    length=$(trained_length "$1")
    measure_perplexity "$1" $((8 * length)) "$length" $((2 * length)) $((4 * length))
}
found() { # log
    perplexities "$1" 3
}
compare() { # runs
    "$python" -m pretraining.compare "$@" ${BASELINE:+--baseline "$BASELINE"} --out "$out"
}
if [[ -n ${LAUNCHER:-} ]]; then
    check_runs "$@"
    both() { # comma-separated
        local IFS=,
        echo "$*"
    }
    if unfinished "$@"; then
        "$python" train.py -m hydra/launcher="$LAUNCHER" experiment="$experiment" \
            name="${NAME}_\${hydra:runtime.choices.$group}_\${seed}" \
            "$group=$(both "${types[@]}")" seed="$(both "${seeds[@]}")" "$@" || true
    fi
fi
comparison "$@"
