#!/usr/bin/env bash
# Perplexity by length: data=proof_pile model_path=output/llama_adape bash script/eval_llama.sh [options]
#
#   data         text: ${DATA_DIR}/${data}.bin, token ids in LongLoRA's published format
#   model_path   model folder
#   DATA_DIR     default: ../data, next to the project's folder
#   options      of python -m tape.evaluation.perplexity, e.g. --convention paper --dtype bfloat16
#
# Results are in ${model_path}/perplexity.csv. Rerunning the command resumes the work.
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
