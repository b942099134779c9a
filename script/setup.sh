#!/usr/bin/env bash
# Installs the project with the tested versions (constraints.txt) into the active environment, or into
# .venv. Does nothing if that is up to date.
#
# Without a GPU, torch's CPU build saves gigabytes:
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu bash script/setup.sh
# Extras of pyproject.toml are kept by later calls: EXTRAS=flash,deepspeed bash script/setup.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Concurrent calls wait for the one that installs.
if command -v flock >/dev/null; then
    exec 9<>pyproject.toml
    flock 9
fi

environment=${VIRTUAL_ENV:-${CONDA_PREFIX:-$PWD/.venv}}
if [[ ! -x $environment/bin/python ]]; then
    for python in python3 python3.13 python3.12 python3.11; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "creating $environment" >&2
            "$python" -m venv "$environment"
            break
        fi
    done
fi
python=$environment/bin/python
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "error: Python 3.11 or newer is needed; found: $(python3 --version 2>&1)" >&2
    exit 1
fi

# pip only warns of an unknown extra.
"$python" -c 'import sys, tomllib
known = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
for name in filter(None, sys.argv[1].split(",")):
    if name not in known:
        sys.exit(f"error: EXTRAS={name} is not an extra; known: {chr(44).join(sorted(known))}")
' "${EXTRAS:-}"

stamp=$environment/.tape-installed # a hash, and the extras
known='' installed=''
if [[ -f $stamp ]]; then
    { read -r known && { read -r installed || installed=dev; }; } <"$stamp" # dev: earlier versions
fi
extras=$(tr , '\n' <<<"$installed,${EXTRAS:-}" | sed '/^$/d' | sort -u | paste -sd , -)
wanted=$({ cat pyproject.toml constraints.txt; echo "$extras $PWD"; } | "$python" -c \
    'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')
if [[ $known != "$wanted" ]]; then
    echo "installing into $environment (once)" >&2
    # Without the compat mode, a clone called tape would shadow the package in its parent folder.
    "$python" -m pip install -qq --disable-pip-version-check \
        --config-settings editable_mode=compat --constraint constraints.txt --editable ".${extras:+[$extras]}" >&2
    printf '%s\n' "$wanted" "$extras" >"$stamp"
fi
