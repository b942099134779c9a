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
# and compared in a figure. Each slice ends with steps, speed and utilization so far.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source script/environment.sh
SLICE=${SLICE:-540}
check_integer SLICE 1
end=$SLICE # bash counts SECONDS from the start of the script
source script/jobs.sh

read -rd '' -a types <<<"${TYPES:-adape rope fire}" || true
read -rd '' -a seeds <<<"${SEEDS:-0}" || true
EXPERIMENT=${EXPERIMENT:-addition_20}
check_runs "$@"

in_time() { # a resumable command: status 75 if it ran out of time
    local status=0 left=$((end - SECONDS))
    if ((left <= 0)); then
        return 75
    fi
    timeout --signal TERM --preserve-status "$left" "$@" &
    wait $! || status=$?
    exit_if_stopped
    return $((status == 143 ? 75 : status)) # 128 + 15: from an evaluation, which does not save
}

status=0 runs=()
for seed in "${seeds[@]}"; do
    for type in "${types[@]}"; do
        run=output/${EXPERIMENT}_${type}_$seed
        runs+=("$run")
        if ((status == 0)); then
            in_time "$python" train.py experiment="$EXPERIMENT" position="$type" seed="$seed" \
                output_dir="$run" "$@" &&
                in_time "$python" -m arithmetic.evaluate model="$run" batch_size="${BATCH:-4096}" ||
                status=$?
        fi
    done
done
if ((status != 0 && status != 75)); then
    exit "$status"
fi
begun=()
for run in "${runs[@]}"; do
    if [[ -d $run ]]; then
        begun+=("$run")
    fi
done
if ((${#begun[@]})); then
    "$python" benchmarks/utilization.py "${begun[@]}"
else
    echo "no run has begun: give a longer SLICE"
fi
if ((status == 0)); then
    "$python" -m arithmetic.heatmap "${runs[@]}" --out "output/${EXPERIMENT}_heatmaps"
fi
exit "$status"
