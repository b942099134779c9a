#!/usr/bin/env bash
# Trains and evaluates encodings x seeds on additions, and compares them in one table and one picture:
#
#   TYPES="adape rope" SEEDS="0 1 2" bash script/compare_add.sh [settings]
#
#   TYPES      the encodings, see script/train.sh; seven by default
#   SEEDS      of weights and problems; 0 1 2 by default
#   JOBS       runs at a time; 2 by default, which share the cores
#   NAME       of the comparison; add by default. The runs are output/${NAME}_${TYPE}_${SEED}, what
#              they print is in ${NAME}_${TYPE}_${SEED}.log beside the table, output/compare_${NAME}
#   settings   of the training, e.g. experiment=addition_20 trainer.max_steps=5000
#
# Runs that have finished are taken as they are; the same command continues what was stopped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh

read -ra types <<<"${TYPES:-adape rope fire randrope nope alibi xpos}"
read -ra seeds <<<"${SEEDS:-0 1 2}"
JOBS=${JOBS:-2}
NAME=${NAME:-add}
out=output/compare_$NAME
mkdir -p "$out"
cores=$(getconf _NPROCESSORS_ONLN)
threads=$((cores > JOBS ? cores / JOBS : 1))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}

learn() { # name type seed settings
    trap : TERM INT # which are for the runs: this waits until they have saved
    "$python" train.py experiment=addition name="$1" position="$2" seed="$3" "${@:4}"
    "$python" -m arithmetic.evaluate model="output/$1"
}

set -m # each run is a process group of its own: a signal reaches all of it
stop() {
    trap '' TERM INT
    for run in $(jobs -p); do
        kill -"$1" -- "-$run" 2>/dev/null || true
    done
    wait
    exit "$2"
}
trap 'stop TERM 143' TERM
trap 'stop INT 130' INT

names=() pids=()
for seed in "${seeds[@]}"; do
    for type in "${types[@]}"; do
        while (($(jobs -pr | wc -l) >= JOBS)); do
            wait -n || true # its status is asked for below
        done
        name=${NAME}_${type}_$seed
        learn "$name" "$type" "$seed" "$@" >"$out/$name.log" 2>&1 &
        names+=("$name") pids+=($!)
        echo "$name: run ${#names[@]} of $((${#types[@]} * ${#seeds[@]})) begins, see $out/$name.log"
    done
done
failed=0
for i in "${!names[@]}"; do
    if wait "${pids[i]}"; then
        echo "${names[i]}: $(grep -aE "^(inside|outside):" "$out/${names[i]}.log" | cut -d, -f1 | paste -sd " ")"
    else
        echo "error: ${names[i]} did not finish, see $out/${names[i]}.log" >&2
        failed=1
    fi
done
if ((failed)); then
    exit 1
fi
"$python" -m arithmetic.compare "${names[@]/#/output/}" --out "$out"
