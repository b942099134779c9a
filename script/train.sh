#!/usr/bin/env bash
# Pre-trains a decoder and reports: TYPE=adape bash script/train.sh [settings]
#
#   TYPE            the encoding: adape rope alibi fire xpos randrope nope t5rb sincos learned yarn
#                   adayarn
#   NGPUS, NNODES   processes, see script/launch.sh
#   settings        as for train.py, e.g. launcher=fsdp2 trainer.max_steps=1000 experiment=c4
#
# The result is in output/${TYPE}_${data.name}: output/adape_local, and output/adape_c4 with
# experiment=c4. Where there is no output/${TYPE}_c4, that is made a link to the result of another
# text, for commands that begin with it. The same command continues a run that was stopped; exit
# status 75 says that it was told to stop (SIGTERM), has saved, and can be continued.
set -euo pipefail
TYPE=${TYPE:-adape}
text='${oc.select:data.name,${hydra:runtime.choices.data}}'
if [[ " $*" != *" name="* && " $*" != *" output_dir="* ]]; then
    set -- "name='${TYPE}_$text'" alias="${TYPE}_c4" "$@"
fi
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" position="$TYPE" "$@"
