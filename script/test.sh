#!/usr/bin/env bash
# Checks the code's style and runs the tests but the slow ones, which -m slow runs:
#   bash script/test.sh [pytest's arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash script/setup.sh
environment=${VIRTUAL_ENV:-${CONDA_PREFIX:-$PWD/.venv}}

"$environment/bin/ruff" check .
"$environment/bin/ruff" format --check .
exec "$environment/bin/python" -m pytest --numprocesses "${WORKERS:-2}" "$@"
