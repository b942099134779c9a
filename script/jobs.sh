# Sourced by scripts that start runs, for `types` x `seeds`: what they may be, and how they are stopped.
# Types are entries of config/$group.
if ((BASH_VERSINFO[0] < 5)); then
    echo "error: bash 5 or newer is needed, this is $BASH_VERSION" >&2
    exit 1
fi

if [[ ! ${NAME:-runs} =~ ^[A-Za-z0-9_][A-Za-z0-9._=+-]*$ ]]; then
    echo "error: NAME=$NAME must be one folder of letters, digits and ._-+=" >&2
    exit 1
fi

group=position
check_runs() { # settings
    local type seed setting known
    if ((!${#types[@]} || !${#seeds[@]})); then
        echo "error: TYPES='${types[*]}', SEEDS='${seeds[*]}': name one or more of each" >&2
        exit 1
    fi
    known=$("$python" -c 'import sys, config; print(*sorted(config.options(sys.argv[1])))' "$group")
    for type in "${types[@]}"; do
        if [[ $group/$type == position/keep ]]; then
            echo "error: TYPES: 'keep' is the encoding of a base_model; name an encoding" >&2
            exit 1
        fi
        if [[ " $known " != *" $type "* ]]; then
            echo "error: TYPES: no '$type' in config/$group; known: $known" >&2
            exit 1
        fi
    done
    for seed in "${seeds[@]}"; do
        check_integer seed 0
    done
    if (($(printf '%s\n' "${types[@]}" | sort -u | wc -l) < ${#types[@]})) ||
        (($(printf '%s\n' "${seeds[@]}" | sort -u | wc -l) < ${#seeds[@]})); then
        echo "error: TYPES='${types[*]}', SEEDS='${seeds[*]}': duplicate value" >&2
        exit 1
    fi
    for setting in "$@"; do
        case $setting in
        name=* | output_dir=* | "$group"=* | seed=*)
            echo "error: $setting is set by this script; use NAME, TYPES and SEEDS" >&2
            exit 1
            ;;
        esac
    done
}

# Each run is a process group, which receives signals as a whole. This script waits until all have
# saved.
set -m
stopped=
forward() { # signal, exit status
    stopped=$2
    local run
    for run in $(jobs -p); do
        kill "-$1" -- "-$run" 2>/dev/null || true
    done
}
trap 'forward TERM 75' TERM HUP
trap 'forward INT 130' INT
exit_if_stopped() {
    if [[ -n $stopped ]]; then
        trap '' TERM HUP INT
        wait
        exit "$stopped"
    fi
}
