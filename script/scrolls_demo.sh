#!/usr/bin/env bash
# Runs all steps of SCROLLS on a laptop, on the task `sample`, which is not part of SCROLLS: it fine-tunes
# a pre-trained model, generates answers, scores them, and shows them next to the answers of the model
# before fine-tuning. script/train.sh trains the model first if it is missing:
# bash script/scrolls_demo.sh [settings]
#
#   TYPE       encoding; adape by default
#   settings   of the fine-tuning, e.g. trainer.max_steps=1500
#
# Answers are in scrolls/sample, scores and a page of the answers in its metrics/. Rerunning the
# command resumes the work.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh

export TYPE=${TYPE:-adape}
answers=scrolls/sample
base=output/${TYPE}_local
if [[ ! -f $base/model.safetensors ]]; then
    bash script/train.sh
fi
DATASET_NAME=sample bash script/ft_scrolls.sh base_model="$base" "$@"
if [[ output/scrolls/sample/$TYPE/model.safetensors -nt $answers/$TYPE.parts/shard-1-of-1/parts.jsonl ]]; then
    rm -rf "$answers/$TYPE.json" "$answers/$TYPE.parts" # from other weights
fi
SAVE_DIR=$answers bash script/gen_scrolls.sh
"$python" -m tape.cli scrolls-generate model="$base" task=sample budget=demo \
    output="$answers/${TYPE}_untuned.json"

printf '\n'
"$python" eval_scrolls.py --split validation --dataset_name sample --predictions "$answers" \
    --metrics_output_dir "$answers/metrics"
