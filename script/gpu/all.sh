#!/usr/bin/env bash
# Tests and measures everything that needs a GPU, in time slices: bash script/gpu/all.sh [folder]
#
#   folder     report.md, the logs, and a folder of tables and raw rows per part; output/gpu by
#              default, without a GPU output/gpu_rehearsal
#   SLICE      seconds until the running part saves and the script exits with status 75; 480 by
#              default
#   PARTS      tests layer training long steps decoding llama addition text, or some of them
#
# The most informative parts come first. Repeat the command until its exit status is not 75. It tries
# failed parts and tests again. Without a GPU, it runs at small sizes, as a rehearsal.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source script/environment.sh
SLICE=${SLICE:-480}
check_integer SLICE 1
export PYTHONPATH=$PWD
all="tests layer training long steps decoding llama addition text"
for name in ${PARTS:=$all}; do
    if [[ " $all " != *" $name "* ]]; then
        echo "error: PARTS: no part is called $name; choose among $all" >&2
        exit 1
    fi
done

if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    out=${1:-output/gpu} tokens=16384 lengths="1024 4096 8192" compiled="no yes"
    model=(model=base vocab_size=32000) few=() steps=(trainer.max_steps=2000)
    layer=(--shape base --lengths 1024 8192 32768) decoder=(--shape base)
    long=(--shape small --lengths 1024 4096 16384)
    llama=(--shape llama2_7b --checkpointing) addition=() fused=flex_attention
    backends=(sdpa flex_attention)
else
    out=${1:-output/gpu_rehearsal} tokens=128 lengths=32 compiled=no
    model=(model=tiny vocab_size=300 trainer.bf16=false) steps=(trainer.max_steps=4)
    few=(--shape tiny --new 2) layer=(--lengths 32 --methods rope tape fire t5) decoder=() llama=()
    long=(--lengths 32)
    fused=sdpa backends=(sdpa) # flex_attention does not train on a CPU
    addition=(vary.position='[rope,tape]' evaluation="'max_length=2 samples=1'" --
        model=arithmetic_small trainer.max_steps=2 trainer.logging_steps=1 trainer.eval_steps=2
        trainer.bf16=false length=10 data.max_first=2 data.max_second=2 task.samples=1
        eval_blocks=8 trainer.per_device_train_batch_size=4)
fi
read -ra every <<<"$lengths"
first=${every[0]}
mkdir -p "$out/logs" "$out/finished"
states="" begun="" waits="" failed=""

part() { # group name command: runs the command, unless it has finished or the time is over
    local group=$1 name=$2 left=$((SLICE - SECONDS)) state=finished status=0
    local log=$out/logs/$2.txt mark=$out/finished/$2
    shift 2
    [[ " $PARTS " == *" $group "* ]] || return 0
    if [[ ! -f $mark || $(<"$mark") != "$*" ]]; then
        if [[ $begun && $left -le 0 ]]; then # a slice does something, however slowly it starts
            state=waits waits=1
        else
            begun=1
            echo "$group: $name"
            timeout --foreground --kill-after 60 $((left > 0 ? left : 1)) "$python" "$@" \
                >>"$log" 2>&1 || status=$?
            case $status in
                0) echo "$*" >"$mark" ;;
                75 | 124 | 137) state="goes on" waits=1 ;;
                *) state="failed, see $log" failed+=" $name" ;;
            esac
        fi
    fi
    states+="| $group: $name | $state |"$'\n'
}

speed() { # group name arguments
    part "$1" "$2" -m tape.cli speed --out "$out/$2" ${few[@]+"${few[@]}"} "${@:3}"
}

train() { # group folder encoding length settings
    part "$1" "$(basename "$2")" train.py experiment=paper data=local "${model[@]}" \
        "position=$3" eval_blocks=8 "output_dir=$2" "length=$4" \
        "trainer.per_device_train_batch_size=$((tokens / $4))" \
        trainer.gradient_accumulation_steps=1 "${@:5}"
}

# Those that have passed are not run again; pytest's status is 5 if all have.
touch "$out/logs/tests.txt"
sed -n 's/^\(tests\/.*\) \(PASSED\|SKIPPED\).*/--deselect=\1/p' "$out/logs/tests.txt" \
    >"$out/logs/passed"
part tests tests -c 'import sys, pytest; sys.exit(int(pytest.main(sys.argv[1:])) % 5)' \
    -v --tb=short -p no:cacheprovider -m gpu tests/test_gpu.py "@$out/logs/passed"
speed layer layer --case layer --compiled no "${layer[@]}"
speed layer layer_compiled --case layer --work training "${layer[@]}" --methods rope tape \
    --compiled "${compiled##* }" --backends "${backends[@]}"
speed training training --case train_step --methods rope tape llama ${decoder[@]+"${decoder[@]}"} \
    --lengths "$first" --batch $((tokens / first)) --compiled "${compiled##* }" \
    --backends sdpa flex_attention
speed training biases --case train_step --methods rope fire t5 ${decoder[@]+"${decoder[@]}"} \
    --lengths "$first" --batch $((tokens / first)) --compiled "${compiled##* }" \
    --backends "$fused"
speed long long --case train_step --checkpointing --batch 1 --rounds 3 --compiled no "${long[@]}" \
    --methods rope tape alibi fox t5 kerple fire --backends "${backends[@]}"
for length in $lengths; do
    for optimizer in adamw muon; do
        for compile in $compiled; do
            for encoding in rope tape; do
                name=${encoding}_${optimizer}_$length graph=false
                [[ $compile == no ]] || name+=_compiled graph=true
                train steps "$out/steps/$name" "$encoding" "$length" "optimizer=$optimizer" \
                    "trainer.torch_compile=$graph" trainer.max_steps=30 \
                    trainer.logging_steps=5 trainer.save_steps=30 trainer.eval_steps=30
            done
        done
    done
done
read -ra both <<<"$compiled"
speed decoding decoding --case decode --methods rope tape fire t5 llama --lengths "$first" \
    --compiled "${both[@]}" --backends sdpa ${decoder[@]+"${decoder[@]}"}
speed llama llama --case adapters decode --alone --methods lora longlora adape rope tape \
    --backends sdpa --batch 1 --compiled no --rounds 7 ${llama[@]+"${llama[@]}"}
part addition addition_20 sweep.py sweep=addition_gpu "runs='$out/addition/'" \
    "compare='compare --name grid --out $out/compare_addition'" \
    ${addition[@]+"${addition[@]}"}
for encoding in rope tape; do
    train text "$out/text/$encoding" "$encoding" "$first" "${steps[@]}" \
        trainer.learning_rate=1.0e-3 optimizer=muon
done

report="# What ran"$'\n\n'"| part | state |"$'\n'"|---|---|"$'\n'"$states"
echo "$report" >"$out/report.md.new"
mv "$out/report.md.new" "$out/report.md"
echo "$report"
echo "also in $out/report.md"
if [[ $waits ]]; then
    echo "work is left: the same command continues"
    exit 75
fi
if [[ $failed ]]; then
    echo "error: failed:$failed" >&2
    exit 1
fi
