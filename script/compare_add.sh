#!/usr/bin/env bash
# Trains and evaluates encodings x seeds on additions, and compares them in one table and one picture:
#
#   TYPES="adape rope" SEEDS="0 1 2" bash script/compare_add.sh [settings]
#
#   TYPES        the encodings, see script/train.sh; seven by default
#   SEEDS        of weights and problems; 0 1 2 by default
#   JOBS         runs at a time; 2 by default, which share the cores
#   NAME         of the comparison; add by default. The runs are output/${NAME}_${TYPE}_${SEED}, what
#                they print is in ${NAME}_${TYPE}_${SEED}.log beside the table, output/compare_${NAME}
#   GRID         name of the evaluation; grid by default
#   EVALUATION   its settings, see script/eval_add.sh, e.g. EVALUATION="max_length=20 samples=50"
#   settings     of the training, e.g. experiment=addition_20 trainer.max_steps=5000
#
# Runs that have finished are taken as they are. Told to stop (SIGTERM, a hang-up), all runs save and
# this ends with status 75: the same command continues.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh
source script/jobs.sh

read -rd '' -a types <<<"${TYPES:-adape rope fire randrope nope alibi xpos}" || true
read -rd '' -a seeds <<<"${SEEDS:-0 1 2}" || true
read -rd '' -a evaluation <<<"${EVALUATION:-}" || true
NAME=${NAME:-add}
GRID=${GRID:-grid}
JOBS=${JOBS:-2}
if [[ ! $JOBS =~ ^[1-9][0-9]*$ ]]; then
    echo "error: JOBS=$JOBS must be a whole number, 1 or more" >&2
    exit 1
fi
check_runs "$@"
out=output/compare_$NAME
mkdir -p "$out"
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > JOBS ? cores / JOBS : 1))}

learn() { # name type seed settings
    local name=$1 log=$out/$1.log told=
    trap 'told=yes' TERM INT HUP # the run saves, and nothing follows it
    if "$python" train.py experiment=addition name="$name" position="$2" seed="$3" "${@:4}" \
        >>"$log" 2>&1 && [[ -z $told ]] &&
        "$python" -m arithmetic.evaluate model="output/$name" name="$GRID" "${evaluation[@]}" \
            >>"$log" 2>&1; then
        echo "$name: $(grep -aE "^(inside|outside):" "$log" | tail -n 2 | cut -d, -f1 | paste -sd " ")"
    elif [[ -z $told ]]; then
        echo "error: $name did not finish, see $log" >&2
        return 1
    fi
}

names=() pids=()
for seed in "${seeds[@]}"; do
    for type in "${types[@]}"; do
        while (($(jobs -pr | wc -l) >= JOBS)); do
            wait -n || true # its status is asked for below
            end_if_told
        done
        name=${NAME}_${type}_$seed
        echo "$name: run $((${#names[@]} + 1)) of $((${#types[@]} * ${#seeds[@]})) begins, see $out/$name.log"
        learn "$name" "$type" "$seed" "$@" &
        names+=("$name") pids+=($!)
    done
done
failed=0
for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
    end_if_told
done
if ((failed)); then
    exit 1
fi
"$python" -m arithmetic.compare "${names[@]/#/output/}" --name "$GRID" --out "$out"
