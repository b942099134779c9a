#!/usr/bin/env bash
# Generates the answers of a fine-tuned model: SAVE_DIR=scrolls/quality bash script/gen_scrolls.sh [settings]
#
#   SAVE_DIR      the answers are ${SAVE_DIR}/${TYPE}.json, {id: text}; scrolls/$DATASET_NAME by default
#   DATASET_NAME  the task, as in script/ft_scrolls.sh; the last part of SAVE_DIR by default
#   TYPE          the encoding: the model is output/scrolls/$DATASET_NAME/$TYPE
#   settings      those of config/scrolls/generate.yaml: split=test processes=4 max_batch_tokens=65536
#
# The same command continues what was stopped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh

TYPE=${TYPE:-adape}
if [[ -n ${SAVE_DIR:-} ]]; then
    DATASET_NAME=${DATASET_NAME:-$(basename "$SAVE_DIR")}
else
    DATASET_NAME=${DATASET_NAME:-$("$python" -m scrolls.default "$@")}
fi
exec "$python" -m scrolls.generate model="output/scrolls/$DATASET_NAME/$TYPE" task="$DATASET_NAME" \
    output="${SAVE_DIR:-scrolls/$DATASET_NAME}/$TYPE.json" "$@"
