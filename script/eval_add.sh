#!/usr/bin/env bash
# Evaluates accuracy over a grid of operand lengths: TYPE=tape bash script/eval_add.sh [settings]
#
# The model is output/add_${TYPE} (script/train_add.sh; TYPE is adape by default); settings are flags of
# tape evaluate --task addition, e.g. max_length=10 samples=100 shard=1/4.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh
exec "$python" -m tape.cli evaluate "output/add_${TYPE:-adape}" --task addition "$@"
