#!/usr/bin/env bash
# Checks the code's style and runs the tests but the slow ones, which -m slow runs:
#   bash script/test.sh [pytest's arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh

"$python" -m ruff check .
"$python" -m ruff format --check .
exec "$python" -m pytest --numprocesses "${WORKERS:-2}" "$@"
