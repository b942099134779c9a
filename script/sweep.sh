#!/usr/bin/env bash
# Runs sweep.py with the variables of the scripts that compare runs:
#
#   bash script/sweep.sh NAME AXIS [settings of the sweep] -- [settings of the training]
#
#   TYPES        values of the axis: encodings, methods of extension
#   SEEDS        of weights and data; 0 1 2 by default
#   JOBS         runs at a time, which share the cores; 2 by default
#   NAME         of the sweep. Runs are in output/${NAME}_${TYPE}_${SEED}, their logs
#                ${NAME}_${TYPE}_${SEED}.log next to the table in output/compare_${NAME}
#   EVALUATION   settings or flags of the evaluation
#   PARTIAL      compare the other runs if some failed
#   SLICE        seconds until all runs save and the exit status is 75
#
# Finished runs are not repeated (docs/commands.md). On SIGTERM or SIGHUP all runs save and the exit
# status is 75: rerunning the command resumes the work.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh

sweep=$1 axis=$2
shift 2
text() { # as a value in Hydra's grammar
    [[ $1 =~ ^[0-9]+$ ]] && echo "$1" || printf "'%s'" "${1//\'/\\\'}"
}
exec "$python" sweep.py "sweep=$sweep" ${TYPES:+"vary.$axis=$(text "$TYPES")"} \
    ${SEEDS:+"seeds=$(text "$SEEDS")"} ${JOBS:+"jobs=$(text "$JOBS")"} ${NAME:+"name=$(text "$NAME")"} \
    ${EVALUATION:+"evaluation=$(text "$EVALUATION")"} ${PARTIAL:+partial=true} \
    ${SLICE:+"seconds=$(text "$SLICE")"} "$@"
