#!/usr/bin/env bash
# Extends the context of a Llama by the paper's recipe: TYPE=adape bash script/train_llama.sh [settings]
#
#   TYPE            method: adape lora longlora thetalora ft yarn adape_lora
#   NGPUS, NNODES   processes, see script/launch.sh
#   settings        as for train.py: base_model=FOLDER length=4096 data=local launcher=fsdp2
#
# The base model is meta-llama/Llama-2-7b-hf by default, the text the RedPajama sample. The result is
# in output/llama_${TYPE}: an adapter, or for adape and ft the whole model. Rerunning the command
# resumes a stopped run.
#
# These defaults are for GPUs: 1,000 steps of 524,288 tokens take, by an estimate, a day of one H100 at
# 40 % of its peak, and a CPU more than a year. experiment=smollm2 is for a laptop: SmolLM2-135M, in
# 34 minutes of two busy cores, in bfloat16 only where the processor has instructions for it. Elsewhere
# bfloat16 is several times slower than float32:
# trainer.bf16=false frozen=null
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
TYPE=${TYPE:-adape}
TYPE=${TYPE/#tape/adape} # tape has the paper's name here
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" \
    experiment=llama_extend peft="$TYPE" name="llama_$TYPE" "$@"
