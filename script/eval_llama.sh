#!/usr/bin/env bash
# Perplexity by length of an extended model: data=proof_pile bash script/eval_llama.sh [options]
#
#   data         text: ${DATA_DIR}/${data}.bin, token ids in LongLoRA's published format; proof_pile by
#                default
#   DATA_DIR     default: ../data, next to the project's folder
#   model_name   the model is output/${model_name}; llama_adape by default
#   model_path   folder of the model, instead of model_name
#   seq_len      tokens of the windows, one number or several; default: 1024 2048 4096 8192
#   options      of tape perplexity, e.g. --convention paper --dtype bfloat16
#
# Results are in perplexity.csv, in ${model_path} or, if that is no run of train.py, in output/.
# Rerunning the command resumes the work.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
text=${DATA_DIR:-../data}/${data:-proof_pile}.bin
if [[ ! -f $text ]]; then
    echo "error: $text does not exist: put LongLoRA's file there (docs/perplexity.md), or set DATA_DIR or data" >&2
    exit 1
fi
source script/environment.sh
exec "$python" -m tape.cli perplexity --model "${model_path:-output/${model_name:-llama_adape}}" \
    --data "$text" ${seq_len:+--lengths $seq_len} "$@"
