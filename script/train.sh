#!/usr/bin/env bash
# Pre-trains a decoder and writes a report: TYPE=tape bash script/train.sh [settings]
#
#   TYPE            encoding: tape, rope, alibi, fire or another of docs/encodings.md; the paper's names
#                   adape (the default), randrope, t5rb and adayarn work as well
#   NGPUS, NNODES   processes, see script/launch.sh
#   settings        as for train.py, e.g. launcher=fsdp2 trainer.max_steps=1000 experiment=c4
#
# The result is in output/${TYPE}_${data.name}: output/adape_local, and output/adape_c4 with
# experiment=c4. Repeat the command to resume a stopped run. Exit status 75 means that the run received
# SIGTERM and has saved its state.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
TYPE=${TYPE:-adape}
text='${oc.select:data.name,${hydra:runtime.choices.data}}'
if [[ " $*" != *" name="* && " $*" != *" output_dir="* ]]; then
    set -- "name='${TYPE}_$text'" "$@"
fi
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" position="$TYPE" "$@"
