#!/usr/bin/env bash
# Trains a decoder on a synthetic task and evaluates it by length: TASK=parity TYPE=tape bash script/train_synthetic.sh
#
#   TASK       copy reverse sort add parity modular_sum counting s3 s5 flip_flop recall selective_copy
#              needle induction indirect association (docs/suite.md)
#   TYPE, NGPUS, NNODES and settings are those of script/train.sh
#
# The result is in output/${TASK}_${TYPE}; the accuracy by length and its picture are in its folder
# synthetic. Rerunning the command resumes a stopped run.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh
TASK=${TASK:-parity} TYPE=${TYPE:-adape}
run=output/${TASK}_$TYPE
for setting in "$@"; do
    if [[ $setting == name=* || $setting == output_dir=* ]]; then
        echo "error: $setting: the result is in $run; for another folder use script/train.sh and tape evaluate" >&2
        exit 1
    fi
done
bash script/train.sh experiment=synthetic "data='$TASK'" name="${TASK}_$TYPE" "$@"
exec "$python" -m tape.cli evaluate "$run" --task synthetic
