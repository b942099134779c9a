# Sourced by scripts that compare encodings x seeds, in the project's folder. They set `experiment` and
# the output folder `out`, define `evaluate` for a run and `compare` for all runs, and call `comparison`.
# If runs failed there is no comparison unless `partial` is set, and the exit status is 1.
#
#   TYPES       encodings, see script/train.sh; seven by default
#   SEEDS       of weights and data; 0 1 2 by default
#   JOBS        concurrent runs, which share the cores; 2 by default
#   NAME        of the comparison. Runs are in output/${NAME}_${TYPE}_${SEED}, their logs
#               ${NAME}_${TYPE}_${SEED}.log next to the table in output/compare_${NAME}
#   EVALUATION  settings of the evaluation
#
# Finished runs are not repeated. They are recognised at once by the .finished file next to the log if
# request, config/ and run are unchanged; otherwise, and always if text or weights come from files,
# train.py and the evaluation check. On SIGTERM or SIGHUP all runs save and the script exits with status
# 75: rerunning the command resumes the work.
source script/environment.sh
source script/jobs.sh

read -rd '' -a types <<<"${TYPES:-adape rope fire randrope nope alibi xpos}" || true
read -rd '' -a seeds <<<"${SEEDS:-0 1 2}" || true
read -rd '' -a evaluation <<<"${EVALUATION:-}" || true
JOBS=${JOBS:-2}

log_of() { # name
    echo "$out/${1##*/}.log"
}

found() { # log: the evaluation's final lines
    grep -aE "^(inside|outside):" "$1" | tail -n 2 | cut -d, -f1 | paste -sd " "
}

trained_length() { # run
    "$python" -c 'import json, sys
print(json.load(open(sys.argv[1]))["max_position_embeddings"])' "$1/config.json"
}

measure_perplexity() { # run stride lengths; windows of all lengths start at the same places
    "$python" -m tape.evaluation.perplexity --model "$1" --data local --convention paper \
        --lengths "${@:3}" --stride "$2" --out "$1/compare/perplexity.csv" "${evaluation[@]}"
}

perplexities() { # log lengths: of the last evaluation in it
    sed -nE 's/^\| ([0-9,]+) \|.*\| ([0-9.]+) \|$/perplexity \2 at \1,/p' "$1" | tail -n "$2" | paste -sd " "
}

asked() { # type seed settings: all that determines a run's results, except files of text or weights
    printf '%s\n' "experiment=$experiment" "$group=$1" "seed=$2" "${@:3}" -- "${evaluation[@]}"
    declare -f evaluate measure_perplexity
    "$python" -V # its library is the text of data=local
    find -L config -type f -exec cksum {} + | LC_ALL=C sort
}

holds() { # run
    find -L "$1" -name 'checkpoint-*' -prune -o -type f -exec cksum {} + | LC_ALL=C sort
}

from_files() { # run: whether it, or its evaluation, depends on files that may change
    local target='tape\.data\.LocalCorpus|arithmetic\.problems\.Problems|retrieval\.sequences\.Passkeys'
    [[ ${evaluation[*]} == */* || ${evaluation[*]} == *--data* || ${evaluation[*]} == *--files* ]] ||
        ! grep -qE "^  \"_target_\": \"($target)\",?$" "$1/trained.json" ||
        ! grep -q '^ "base_model": null,' "$1/trained.json" ||
        ! grep -q '^ "tokenizer": null,' "$1/trained.json"
}

finished() { # name type seed settings
    local receipt=$out/${1##*/}.finished
    [[ -f $receipt && -f $(log_of "$1") && -d output/$1 ]] &&
        [[ $(<"$receipt") == "$(asked "${@:2}"; holds "output/$1")" ]]
}

unfinished() { # settings: whether any run is left to do
    local seed type
    for seed in "${seeds[@]}"; do
        for type in "${types[@]}"; do
            finished "${NAME}_${type}_$seed" "$type" "$seed" "$@" || return 0
        done
    done
    return 1
}

learn() { # name type seed settings
    local name=$1 log stopped= before
    log=$(log_of "$name")
    before=$(asked "${@:2}")
    trap 'stopped=yes' TERM INT HUP # the run saves and is not evaluated
    if "$python" train.py experiment="$experiment" name="${name##*/}" output_dir="output/$name" \
        "$group=$2" seed="$3" "${@:4}" \
        >>"$log" 2>&1 && [[ -z $stopped ]] && evaluate "output/$name" >>"$log" 2>&1; then
        if [[ $before == "$(asked "${@:2}")" ]] && ! from_files "output/$name"; then
            { echo "$before"; holds "output/$name"; } >"${log%.log}.finished"
        fi
        echo "$name: $(found "$log")"
    elif [[ -z $stopped ]]; then
        echo "error: $name did not finish, see $log" >&2
        return 1
    fi
}

comparison() { # settings of the training
    local names=() pids=() failed=0 name seed type pid cores
    check_integer JOBS 1
    check_runs "$@"
    mkdir -p "$out"
    cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > JOBS ? cores / JOBS : 1))}
    for seed in "${seeds[@]}"; do
        for type in "${types[@]}"; do
            name=${NAME}_${type}_$seed
            names+=("$name")
            if finished "$name" "$type" "$seed" "$@"; then
                echo "$name: $(found "$(log_of "$name")")"
                exit_if_stopped
                continue
            fi
            exit_if_stopped
            while (($(jobs -pr | wc -l) >= JOBS)); do
                wait -n || true # the exit status is collected below
                exit_if_stopped
            done
            echo "$name: run ${#names[@]} of $((${#types[@]} * ${#seeds[@]})) begins, see $(log_of "$name")"
            learn "$name" "$type" "$seed" "$@" &
            pids+=($!)
        done
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || failed=1
        exit_if_stopped
    done
    if ((failed)) && [[ -z ${partial:-} ]]; then
        exit 1
    fi
    compare "${names[@]/#/output/}" || failed=1
    return "$failed"
}
