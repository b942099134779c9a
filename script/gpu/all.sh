#!/usr/bin/env bash
# All that needs a GPU, in time slices, most informative parts first: bash script/gpu/all.sh [folder]
#
#   folder     report.md, and a folder of tables and raw rows per part; output/gpu by default, without
#              a GPU output/gpu_rehearsal
#   SLICE      seconds until everything is saved and the script exits with status 75; 540 by default
#   PARTS      tests layer training steps decoding llama addition text, or some of them
#
# Rerun the command until it exits with another status than 75. Parts and tests that failed are tried
# again. Without a GPU it runs at small sizes, as a rehearsal.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source script/environment.sh
SLICE=${SLICE:-540}
check_integer SLICE 1
export PYTHONPATH=$PWD
read -ra parts <<<"${PARTS:-}"

exec "$python" benchmarks/gpu_day.py "$@" --seconds "$SLICE" ${parts:+--parts "${parts[@]}"}
