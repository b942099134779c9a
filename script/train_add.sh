#!/usr/bin/env bash
# Trains a decoder on addition: TYPE=tape bash script/train_add.sh [settings]
#
# TYPE, NGPUS, NNODES and settings are those of script/train.sh. experiment=addition_20 and addition_40
# are the paper's recipes. `experiment=addition_quick name=add_trial` takes seconds. The result is in
# output/add_${TYPE}, and script/eval_add.sh evaluates it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" \
    experiment=addition name="add_${TYPE:-adape}" "$@"
