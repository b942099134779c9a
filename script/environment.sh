# Sourced by the other scripts, in the project's folder: installs the project and sets `python`.
bash script/setup.sh
python=${VIRTUAL_ENV:-${CONDA_PREFIX:-$PWD/.venv}}/bin/python

check_integer() { # variable least; bash would evaluate any text as arithmetic
    if [[ ! ${!1} =~ ^(0|[1-9][0-9]{0,8})$ ]] || ((${!1} < $2)); then
        echo "error: $1=${!1} must be an integer >= $2" >&2
        exit 1
    fi
}

# glibc returns large freed blocks to the system at once, and each page of the next block is faulted
# in again: on a CPU, 8 % of a training step and 20 % of a long prompt.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-33554432}
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-4294967296}
