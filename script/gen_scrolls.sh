#!/usr/bin/env bash
# Generates a fine-tuned model's answers: SAVE_DIR=scrolls/quality bash script/gen_scrolls.sh [settings]
#
#   SAVE_DIR      answers are in ${SAVE_DIR}/${TYPE}.json, {id: text}; default: scrolls/$DATASET_NAME
#   DATASET_NAME  task, as in script/ft_scrolls.sh; default: the last part of SAVE_DIR, or quality
#   TYPE          encoding; the model is output/scrolls/$DATASET_NAME/$TYPE
#   settings      of tape scrolls-generate, which --help lists: split=test max_batch_tokens=65536
#
# Rerunning the command resumes the work.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh

TYPE=${TYPE:-adape}
DATASET_NAME=${DATASET_NAME:-$(basename "${SAVE_DIR:-quality}")}
exec "$python" -m tape.cli scrolls-generate model="output/scrolls/$DATASET_NAME/$TYPE" task="$DATASET_NAME" \
    output="${SAVE_DIR:-scrolls/$DATASET_NAME}/$TYPE.json" "$@"
