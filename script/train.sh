#!/usr/bin/env bash
# Pre-trains a decoder and reports: TYPE=adape bash script/train.sh [settings]
#
#   TYPE       the encoding: adape rope alibi fire xpos randrope nope t5rb sincos yarn adayarn
#   settings   as for train.py, e.g. trainer.max_steps=1000 data=text data.files=corpus/,
#              or experiment=c4 for the paper's recipe on C4
#
# The result is in output/${TYPE}_c4. The same command continues a run that was stopped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash script/setup.sh
python=${VIRTUAL_ENV:-${CONDA_PREFIX:-$PWD/.venv}}/bin/python

TYPE=${TYPE:-adape}
exec "$python" train.py position="$TYPE" name="${TYPE}_c4" "$@"
