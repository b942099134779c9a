#!/usr/bin/env bash
# Perplexity by length: data=proof_pile model_path=output/llama_adape bash script/eval_llama.sh [options]
#
#   data         the text: ${DATA_DIR}/${data}.bin, token ids as LongLoRA publishes them
#   model_path   the model's folder
#   DATA_DIR     ../data by default, beside the project's folder
#   options      of python -m tape.evaluation.perplexity, e.g. --convention paper --dtype bfloat16
#
# The results are in ${model_path}/perplexity.csv. The same command continues.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for name in data model_path; do
    if [[ -z ${!name:-} ]]; then
        echo "error: set $name: data=proof_pile model_path=output/llama_adape bash script/eval_llama.sh" >&2
        exit 1
    fi
done
source script/environment.sh
exec "$python" -m tape.evaluation.perplexity --model "$model_path" --data "${DATA_DIR:-../data}/$data.bin" "$@"
