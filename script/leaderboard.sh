#!/usr/bin/env bash
# Trains encodings by the recipes of the leaderboard and shows them among its rows:
#
#   TYPES=mine bash script/leaderboard.sh [settings]
#
#   TYPES               encodings
#   SEEDS, JOBS, SLICE  see script/sweep.sh; by default the seeds of each sweep
#   NAME                of the runs, output/${NAME}_*; give another one after an edit of an encoding
#   SWEEPS              by default: suite text passkey bigrams addition
#   TASKS               of the suite; by default all of config/sweep/suite.yaml
#   settings            of the training, e.g. position.start=1; with SWEEPS, also those of some columns,
#                       e.g. trainer.learning_rate=0.01. `tape leaderboard output/compare_leaderboard_*`
#                       shows all of them afterwards
#
# An encoding takes less than two core-hours. Rerunning the command resumes the work. The page is
# output/leaderboard/leaderboard.md.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${TYPES:?name the encodings, such as TYPES=rope}"
name=${NAME:-leaderboard}
unset NAME EVALUATION
source script/environment.sh

status=0 compared=() began=$(mktemp)
trap 'rm -f "$began"' EXIT
for sweep in ${SWEEPS:-suite text passkey bigrams addition}; do
    tasks=(${TASKS:+"vary.data='$TASKS'"})
    [[ $sweep == suite ]] || tasks=()
    bash script/sweep.sh "$sweep" name="${name}_$sweep" "${tasks[@]}" -- "$@" || status=$?
    ((status != 75 && status != 130)) || exit $status # stopped, and saved
    rows=output/compare_${name}_$sweep/results.csv # not of an earlier time
    [[ ! $rows -nt $began ]] || compared+=("${rows%/*}")
done
# Without folders, the command would write the page of the committed rows.
[[ ! ${compared[*]} ]] || "$python" -m tape.cli leaderboard "${compared[@]}"
exit $status
