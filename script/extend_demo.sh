#!/usr/bin/env bash
# Context extension on a laptop: extends two small RoPE models (trained first if missing) to four times
# their length by every method, and compares the methods: bash script/extend_demo.sh [settings]
#
#   TYPES      the methods, entries of config/peft; all seven by default
#   SEEDS      of the new weights and the order of the text; 0 by default
#   JOBS       see script/comparison.sh
#   NAME       folder in output/ for runs, logs, table and figure; extend by default
#   settings   of the extensions, e.g. trainer.max_steps=100
#
# The base models are output/rope_c4 (script/train.sh), evaluated by perplexity up to 1,024 tokens, and
# output/passkey_rope_0 (experiment=passkey), evaluated by passkey retrieval up to 512 tokens.
# Rerunning the command resumes the work.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
TYPES=${TYPES:-lora longlora thetalora yarn adape adape_lora ft}
SEEDS=${SEEDS:-0}
source script/comparison.sh

group=peft
folder=${NAME:-extend}
out=output/$folder
check_runs "$@"

check_base() { # folder length
    local length
    if [[ ! -f $1/model.safetensors ]]; then
        echo "error: $1 holds a run that has not finished: finish it, or rename it" >&2
        exit 1
    fi
    length=$(trained_length "$1")
    if ((length != $2)); then
        echo "error: $1 was trained on $length tokens, this demo extends models of $2: rename it," \
            "and one of $2 is trained (for a base model of your own: script/train_llama.sh)" >&2
        exit 1
    fi
}
if [[ ! -f output/rope_c4/model.safetensors ]]; then
    TYPE=rope bash script/train.sh
fi
if [[ ! -f output/passkey_rope_0/model.safetensors ]]; then
    "$python" train.py experiment=passkey position=rope seed=0
fi
check_base output/rope_c4 256
check_base output/passkey_rope_0 134

# Windows start every 4,096 tokens of the validation text, at the same places for each length.
NAME=$folder/text
experiment=extend
evaluate() { # run
    "$python" -m tape.evaluation.perplexity --model "$1" --data local --lengths 256 512 1024 \
        --convention paper --stride 4096 --out "$1/extend/perplexity.csv"
}
found() { # log
    perplexities "$1" 3
}
compare() { # runs
    text_runs=("$@")
}
evaluate output/rope_c4
comparison "$@"

NAME=$folder/passkey
experiment=extend_passkey
evaluate() { # run
    "$python" eval_retrieval.py --base_model "$1" --max_tokens 512 --interval 128 --name extend
}
found() { # log
    grep -aE "^[0-9]+ tokens:" "$1" | tail -n 4 | cut -d "(" -f1 | paste -sd " "
}
compare() { # runs
    "$python" -m extension.compare output/rope_c4 output/passkey_rope_0 "${text_runs[@]}" "$@" \
        --out "$out"
}
evaluate output/passkey_rope_0
comparison "$@"
