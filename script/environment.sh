# Sourced by the other scripts, in the project's folder: set up, and name the interpreter.
bash script/setup.sh
python=${VIRTUAL_ENV:-${CONDA_PREFIX:-$PWD/.venv}}/bin/python

check_integer() { # variable least; bash would evaluate any text in it as arithmetic
    if [[ ! ${!1} =~ ^(0|[1-9][0-9]{0,8})$ ]] || ((${!1} < $2)); then
        echo "error: $1=${!1} must be an integer >= $2" >&2
        exit 1
    fi
}

# glibc gives large blocks back to the system as soon as they are free, and has each page of the
# next one faulted in again: on a CPU, 8 % of a training step and 20 % of a long prompt.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-33554432}
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-4294967296}
