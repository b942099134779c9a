#!/usr/bin/env bash
# Checks style and runs the fast tests:
#   bash script/test.sh [pytest arguments]
# With -m slow, it runs the slow tests instead.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export EXTRAS=dev${EXTRAS:+,$EXTRAS}
source script/environment.sh

"$python" -m ruff check .
"$python" -m ruff format --check .
exec "$python" -m pytest --numprocesses "${WORKERS:-2}" --dist worksteal --durations 10 "$@"
