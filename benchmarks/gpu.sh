#!/usr/bin/env bash
# All that wants a GPU, in one go: whether the kernels agree, then what they cost.
#
#   bash benchmarks/gpu.sh [folder]     a folder of tables and raw rows each; output/benchmarks by default
#
# On a machine without one the tests are skipped and the tables are of the CPU: a rehearsal.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh
out=${1:-output/benchmarks}
shape=${SHAPE:-base}
export PYTHONPATH=$PWD

"$python" -m pytest --quiet -m gpu tests

step() { # folder, flags
    "$python" benchmarks/train_step.py --shape "$shape" --out "$out/$1" "${@:2}"
}
decode() {
    "$python" benchmarks/decode.py --shape "$shape" --out "$out/$1" "${@:2}"
}
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    batch=(--tokens 8 1024 --autocast bfloat16)
    methods=(rope tape llama alibi fire t5)
    step sdpa "${batch[@]}" --methods "${methods[@]}" --attention sdpa
    step flex_attention "${batch[@]}" --methods "${methods[@]}" --attention flex_attention
    step sdpa_compiled "${batch[@]}" --methods "${methods[@]}" --attention sdpa --compile
    if "$python" -c 'import flash_attn' 2>/dev/null; then
        step flash "${batch[@]}" --methods rope tape llama alibi --attention flash_attention_2
    fi
    decode dynamic --methods rope tape llama alibi fire
    decode static --methods rope tape llama alibi fire --static
else
    step sdpa --rounds 7
    decode dynamic --rounds 7
fi
