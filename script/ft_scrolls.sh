#!/usr/bin/env bash
# Fine-tunes a pre-trained model on a SCROLLS task:
#
#   TYPE=tape DATASET_NAME=quality bash script/ft_scrolls.sh [settings]
#
#   TYPE          encoding, as in script/train.sh, whose NGPUS and NNODES apply as well
#   DATASET_NAME  gov_report summ_screen_fd qmsum narrative_qa qasper quality (the default)
#                 contract_nli, or sample, which is not part of SCROLLS and needs no files
#   output_name   the pre-trained model is output/${output_name}_c4, or with a message
#                 output/${output_name}_local if only that exists; $TYPE by default
#   SCROLLS_DIR   folder of the official zips, quality.zip and so on; data/scrolls by default. A zip that
#                 is not there is downloaded.
#   settings      as for train.py: budget=paper8k trainer.bf16=true
#
# The result is in output/scrolls/$DATASET_NAME/$TYPE; generate its answers with script/gen_scrolls.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh

TYPE=${TYPE:-adape}
DATASET_NAME=${DATASET_NAME:-quality}
experiment=scrolls
if [[ $DATASET_NAME == sample ]]; then
    experiment=scrolls_sample # takes minutes on two cores
fi
name=${output_name:-$TYPE}
base=output/${name}_c4 local=output/${name}_local
if [[ -d $local && ! -e $base && " $*" != *" base_model="* ]]; then
    echo "there is no model trained on C4 ($base): fine-tuning $local, trained on Python's library" >&2
    base=$local
fi
exec bash script/train.sh experiment="$experiment" position=keep \
    base_model="$base" data.task="$DATASET_NAME" \
    name="$TYPE" "$@"
