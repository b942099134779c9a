#!/usr/bin/env bash
# Trains encodings by the recipes of the leaderboard and shows them among its rows:
#
#   TYPES=mine bash script/leaderboard.sh
#
#   TYPES               encodings
#   SEEDS, JOBS, SLICE  see script/sweep.sh; by default each column has the seeds of its rows
#   SWEEPS              by default: suite encodings passkey bigrams addition
#
# An encoding takes less than two core-hours. Rerunning the command resumes the work. The page is
# output/leaderboard/leaderboard.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${TYPES:?name the encodings, such as TYPES=rope}"
unset NAME EVALUATION
source script/environment.sh

status=0 compared=()
for sweep in ${SWEEPS:-suite encodings passkey bigrams addition}; do
    bash script/sweep.sh "$sweep" name="leaderboard_$sweep" || status=$?
    [[ $status != 75 ]] || exit 75 # stopped, and saved
    [[ ! -d output/compare_leaderboard_$sweep ]] || compared+=("output/compare_leaderboard_$sweep")
done
# Without folders, the command would write the page of the committed rows.
[[ ! ${compared[*]} ]] || "$python" -m tape.commands leaderboard "${compared[@]}"
exit $status
