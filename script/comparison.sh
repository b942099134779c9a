# Sourced by scripts that compare encodings x seeds, in the project's folder: what they have in common.
# They name the experiment and the folder for what comes `out`, say how to `evaluate` a run and
# `compare` all, and call `comparison`. Where runs did not finish they are not compared, unless
# `partial` is set; the status is 1.
#
#   TYPES       the encodings, see script/train.sh; seven by default
#   SEEDS       of weights and data; 0 1 2 by default
#   JOBS        runs at a time; 2 by default, which share the cores
#   NAME        of the comparison. The runs are output/${NAME}_${TYPE}_${SEED}, what they print is in
#               ${NAME}_${TYPE}_${SEED}.log beside the table, in output/compare_${NAME}
#   EVALUATION  settings of the evaluation
#
# Runs that have finished are taken as they are: at once where the same was asked, and config/ and the
# run are what they were, as the .finished file beside the log tells; else, and always where text or
# weights come from files, train.py and the evaluation find out. Told to stop (SIGTERM, a hang-up), all
# runs save and the script ends with status 75: the same command continues.
source script/environment.sh
source script/jobs.sh

read -rd '' -a types <<<"${TYPES:-adape rope fire randrope nope alibi xpos}" || true
read -rd '' -a seeds <<<"${SEEDS:-0 1 2}" || true
read -rd '' -a evaluation <<<"${EVALUATION:-}" || true
JOBS=${JOBS:-2}

log_of() { # name
    echo "$out/${1##*/}.log"
}

found() { # log: its last words, from the evaluation
    grep -aE "^(inside|outside):" "$1" | tail -n 2 | cut -d, -f1 | paste -sd " "
}

trained_length() { # run
    "$python" -c 'import json, sys
print(json.load(open(sys.argv[1]))["max_position_embeddings"])' "$1/config.json"
}

measure_perplexity() { # run stride lengths; windows of each length that begin in the same places
    "$python" -m tape.evaluation.perplexity --model "$1" --data local --convention paper \
        --lengths "${@:3}" --stride "$2" --out "$1/compare/perplexity.csv" "${evaluation[@]}"
}

perplexities() { # log lengths: those of its last evaluation
    sed -nE 's/^\| ([0-9,]+) \|.*\| ([0-9.]+) \|$/perplexity \2 at \1,/p' "$1" | tail -n "$2" | paste -sd " "
}

asked() { # type seed settings: all that decides what a run gives, but for files of text or weights
    printf '%s\n' "experiment=$experiment" "$group=$1" "seed=$2" "${@:3}" -- "${evaluation[@]}"
    declare -f evaluate measure_perplexity
    "$python" -V # whose library is the text of data=local
    find -L config -type f -exec cksum {} + | LC_ALL=C sort
}

holds() { # run
    find -L "$1" -name 'checkpoint-*' -prune -o -type f -exec cksum {} + | LC_ALL=C sort
}

from_files() { # run: does it, or its evaluation, come from files that may change?
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

unfinished() { # settings: is anything left to do?
    local seed type
    for seed in "${seeds[@]}"; do
        for type in "${types[@]}"; do
            finished "${NAME}_${type}_$seed" "$type" "$seed" "$@" || return 0
        done
    done
    return 1
}

learn() { # name type seed settings
    local name=$1 log told= before
    log=$(log_of "$name")
    before=$(asked "${@:2}")
    trap 'told=yes' TERM INT HUP # the run saves, and nothing follows it
    if "$python" train.py experiment="$experiment" name="${name##*/}" output_dir="output/$name" \
        "$group=$2" seed="$3" "${@:4}" \
        >>"$log" 2>&1 && [[ -z $told ]] && evaluate "output/$name" >>"$log" 2>&1; then
        if [[ $before == "$(asked "${@:2}")" ]] && ! from_files "output/$name"; then
            { echo "$before"; holds "output/$name"; } >"${log%.log}.finished"
        fi
        echo "$name: $(found "$log")"
    elif [[ -z $told ]]; then
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
                end_if_told
                continue
            fi
            end_if_told
            while (($(jobs -pr | wc -l) >= JOBS)); do
                wait -n || true # its status is asked for below
                end_if_told
            done
            echo "$name: run ${#names[@]} of $((${#types[@]} * ${#seeds[@]})) begins, see $(log_of "$name")"
            learn "$name" "$type" "$seed" "$@" &
            pids+=($!)
        done
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || failed=1
        end_if_told
    done
    if ((failed)) && [[ -z ${partial:-} ]]; then
        exit 1
    fi
    compare "${names[@]/#/output/}" || failed=1
    return "$failed"
}
