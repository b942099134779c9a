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
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
TYPE=${TYPE:-adape}
TYPE=${TYPE/#tape/adape} # tape has the paper's name here
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" \
    experiment=llama_extend peft="$TYPE" name="llama_$TYPE" "$@"
