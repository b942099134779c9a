#!/usr/bin/env bash
# Trains ablations of TAPE x seeds on source code and evaluates them as in the paper's Tables 6 and 7,
# at 1/8, 1/4, 1/2 and 1 of the training length:
#
#   TABLES="width" SEEDS="0 1 2" bash script/ablations.sh [settings]
#
#   TABLES       architecture, equivariance and width (config/ablations.yaml); all by default
#   SEEDS, JOBS, NAME (ablation by default): see script/comparison.sh
#   EVALUATION   flags of python -m tape.evaluation.perplexity, e.g. --data text --files github/
#                (default: --data local)
#   settings     of the training, e.g. data=text data.files=code/ model=base length=1024
#
# A configuration in several tables is trained once. Failed runs are listed below the tables, and the
# exit status is 1. Rerunning the command resumes the work.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source script/comparison.sh

declare -A rows
while read -r table listed; do
    rows[$table]=$listed
    known+=" $table"
done < <("$python" -c 'import config
for table, rows in config.ABLATIONS.tables.items():
    print(table, *rows)')
read -rd '' -a tables <<<"${TABLES:-$known}" || true
types=()
for table in "${tables[@]}"; do
    if [[ -z ${rows[$table]:-} ]]; then
        echo "error: TABLES: no '$table'; known:$known" >&2
        exit 1
    fi
    for row in ${rows[$table]}; do
        [[ " ${types[*]} " == *" $row "* ]] || types+=("$row")
    done
done

group=ablation
experiment=ablation
NAME=${NAME:-ablation}
out=output/compare_$NAME
partial=yes
evaluate() { # run
    local length
    length=$(trained_length "$1")
    measure_perplexity "$1" "$length" $((length / 8)) $((length / 4)) $((length / 2)) "$length"
}
found() { # log
    perplexities "$1" 4
}
compare() { # runs
    local table row seed runs baseline=full failed=0
    for seed in "${seeds[@]}"; do
        if [[ -f output/${NAME}_full_$seed/compare/perplexity.csv ]]; then
            baseline=output/${NAME}_full_$seed
            break
        fi
    done
    for table in "${tables[@]}"; do
        runs=()
        for row in ${rows[$table]}; do
            for seed in "${seeds[@]}"; do
                runs+=("output/${NAME}_${row}_$seed")
            done
        done
        echo
        "$python" -m pretraining.compare "${runs[@]}" --baseline "$baseline" \
            --out "$out/$table" || failed=1
    done
    return "$failed"
}
comparison "$@"
