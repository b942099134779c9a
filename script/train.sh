#!/usr/bin/env bash
# Pre-trains a decoder and reports: TYPE=adape bash script/train.sh [settings]
#
#   TYPE            the encoding: adape rope alibi fire xpos randrope nope t5rb sincos learned yarn
#                   adayarn
#   NGPUS, NNODES   processes, see script/launch.sh
#   settings        as for train.py, e.g. launcher=fsdp2 trainer.max_steps=1000 experiment=c4
#
# The result is in output/${TYPE}_c4. The same command continues a run that was stopped; exit
# status 75 says that it was told to stop (SIGTERM), has saved, and can be continued.
set -euo pipefail
TYPE=${TYPE:-adape}
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" position="$TYPE" name="${TYPE}_c4" "$@"
