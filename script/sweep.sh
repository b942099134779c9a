#!/usr/bin/env bash
# Runs `tape sweep` with the variables of the scripts that compare encodings:
#
#   bash script/sweep.sh NAME [settings of the sweep] -- [settings of the runs]
#
#   TYPES        encodings
#   SEEDS        of weights and data
#   JOBS         runs at a time, which share the cores; 2 by default
#   NAME         of the sweep. Runs are in output/${NAME}_${TYPE}_${SEED}, their logs
#                ${NAME}_${TYPE}_${SEED}.log next to the table in output/compare_${NAME}
#   EVALUATION   further arguments of the evaluation
#   SLICE        seconds until all runs save and the exit status is 75, for machines that end a command
#                after a fixed time without a signal
#
# Finished runs are not repeated (docs/commands.md). On SIGTERM or SIGHUP, all runs save and the exit
# status is 75. Repeat the command to resume the work.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh

text() { # as a value in Hydra's grammar
    [[ $1 =~ ^[0-9]+$ ]] && echo "$1" || printf "'%s'" "${1//\'/\\\'}"
}
[[ -z ${SLICE:-} ]] || check_integer SLICE 1
exec "$python" sweep.py "sweep=$1" ${TYPES:+"vary.position=$(text "$TYPES")"} \
    ${SEEDS:+"seeds=$(text "$SEEDS")"} ${JOBS:+"jobs=$(text "$JOBS")"} ${NAME:+"name=$(text "$NAME")"} \
    ${EVALUATION:+"evaluation=$(text "$EVALUATION")"} ${SLICE:+"seconds=$(text "$SLICE")"} "${@:2}"
