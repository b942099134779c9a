#!/usr/bin/env bash
# Trains ablations of TAPE x seeds on source code and evaluates them as in the paper's Tables 6 and 7,
# at 1/8, 1/4, 1/2 and 1 of the training length:
#
#   TABLES="width" SEEDS="0 1 2" bash script/ablations.sh [settings]
#
#   TABLES       architecture, equivariance and width (config/sweep/ablations.yaml); all by default
#   SEEDS, JOBS, NAME (ablation by default): see script/sweep.sh
#   EVALUATION   flags of python -m tape.evaluation.perplexity, e.g. --data text --files github/
#                (default: --data local)
#   settings     of the training, e.g. data=text data.files=code/ model=base length=1024
#
# A configuration in several tables is trained once. Failed runs are listed below the tables, and the
# exit status is 1. Rerunning the command resumes the work.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/sweep.sh" ablations ablation ${TABLES:+"only='$TABLES'"} -- "$@"
