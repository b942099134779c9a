#!/usr/bin/env bash
# All that wants a GPU, in one go: whether the kernels agree, then what they cost.
#
#   bash benchmarks/gpu.sh [folder]     tables go there; benchmarks/results by default
#
# On a machine without one the tests are skipped and the tables are of the CPU: a rehearsal.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh
out=${1:-benchmarks/results}
shape=${SHAPE:-base}
export PYTHONPATH=$PWD

"$python" -m pytest --quiet -m gpu tests

step=("$python" benchmarks/train_step.py --shape "$shape" --out "$out")
decode=("$python" benchmarks/decode.py --shape "$shape" --out "$out")
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    batch=(--tokens 8 1024 --autocast bfloat16)
    methods=(rope tape llama alibi fire t5)
    "${step[@]}" "${batch[@]}" --methods "${methods[@]}" --attention sdpa
    "${step[@]}" "${batch[@]}" --methods "${methods[@]}" --attention flex_attention
    "${step[@]}" "${batch[@]}" --methods "${methods[@]}" --attention sdpa --compile
    if "$python" -c 'import flash_attn' 2>/dev/null; then
        "${step[@]}" "${batch[@]}" --methods rope tape llama alibi --attention flash_attention_2
    fi
    "${decode[@]}" --methods rope tape llama alibi fire
    "${decode[@]}" --methods rope tape llama alibi fire --static
else
    "${step[@]}" --repeats 7
    "${decode[@]}" --repeats 7
fi
