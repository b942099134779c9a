#!/usr/bin/env bash
# Checks style and runs all tests except the slow ones (-m slow):
#   bash script/test.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh

"$python" -m ruff check .
"$python" -m ruff format --check .
exec "$python" -m pytest --numprocesses "${WORKERS:-2}" "$@"
