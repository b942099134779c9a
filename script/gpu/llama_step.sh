#!/usr/bin/env bash
# Llama-2-7B's shape on one GPU of 80 GB: training steps of lora, longlora and adape at 8,192 tokens,
# prompts and decoding of rope and tape; ten minutes at most. bash script/gpu/llama_step.sh [folder]
#
#   folder     llama_step.md and its raw rows; output/llama_step by default
#   SHAPE      of the model; llama2_7b by default, small without a GPU
#   LENGTH     tokens of a step and of a prompt; 8192 by default
#   NEW        tokens to decode; 64 by default
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source script/environment.sh
export PYTHONPATH=$PWD

"$python" benchmarks/llama_step.py --shape "${SHAPE:-llama2_7b}" --length "${LENGTH:-8192}" \
    --new "${NEW:-64}" --out "${1:-output/llama_step}"
