#!/usr/bin/env bash
# Speed and memory of encodings on one GPU, in time slices: bash script/gpu/efficiency.sh [folder]
#
#   folder     output/efficiency by default
#   SLICE      seconds until the script exits with status 75 if work is left; 480 by default
#
# Measures in turn, each with a folder of tables and figures:
#   layer      the paper's attention layer at 1,024, 8,192 and 32,768 tokens, every encoding and backend
#   training   steps of the paper's model, compiled: rope, tape and the library's Llama
#   biases     the same in flex_attention: rope, fire and t5
#   decoding   prompts of 1,024 tokens and decoding after them, with and without compilation
# Rerunning the command resumes the work. Without a GPU it runs at small sizes, as a test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source script/environment.sh
SLICE=${SLICE:-480}
check_integer SLICE 1
end=$SLICE # bash counts SECONDS from the start of the script
export PYTHONPATH=$PWD
out=${1:-output/efficiency}

if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    lengths=(1024 8192 32768) length=1024 sequences=16 compiled=(yes) both=(no yes) sizes=() layer=()
else
    layer=(--encodings rope tape) lengths=(32) length=32 sequences=2 compiled=(no) both=(no)
    sizes=(--layers 2 --hidden 64 --heads 4 --mlp 128 --vocabulary 256 --new 4)
fi

status=0
measure() { # name, arguments of benchmarks/speed.py
    local name=$1 left=$((end - SECONDS)) ended=0
    shift
    if ((left <= 0)) && [[ -n ${begun:-} ]]; then
        status=75
        return
    fi
    begun=yes # a slice measures something, however slowly it starts
    left=$((left > 0 ? left : 1))
    "$python" benchmarks/speed.py --out "$out/$name" --seconds "$left" "${sizes[@]}" "$@" || ended=$?
    if ((ended != 0 && ended != 75)); then
        exit "$ended"
    fi
    status=$((ended > status ? ended : status))
}

model=(--scopes model --lengths "$length")
measure layer --scopes layer --work forward training --lengths "${lengths[@]}" --compiled no \
    "${layer[@]}"
measure training "${model[@]}" --work training --batch "$sequences" --compiled "${compiled[@]}" \
    --backends sdpa flex_attention --encodings rope tape --peers transformers
measure biases "${model[@]}" --work training --batch "$sequences" --compiled "${compiled[@]}" \
    --backends flex_attention --encodings rope fire t5 --peers
measure decoding "${model[@]}" --work prefill decoding --compiled "${both[@]}" \
    --backends sdpa --encodings rope tape fire t5 --peers transformers
exit "$status"
