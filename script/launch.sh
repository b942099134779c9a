#!/usr/bin/env bash
# Starts train.py in one or several processes: bash script/launch.sh settings
#
#   NGPUS      processes on this node, one per GPU; default: SLURM_GPUS_ON_NODE or 1
#   NNODES     number of nodes, with NODE_RANK, MASTER_ADDR and MASTER_PORT as for torchrun; under
#              SLURM derived from its variables: srun --ntasks-per-node=1 bash script/train.sh
#
# Repeat the command to resume a stopped run. Exit status 75 means that the run received SIGTERM and has
# saved its state.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
trap 'exit 75' TERM # until the run begins
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source script/environment.sh

NGPUS=${NGPUS:-${SLURM_GPUS_ON_NODE:-1}}
NNODES=${NNODES:-${SLURM_NNODES:-1}}
NODE_RANK=${NODE_RANK:-${SLURM_NODEID:-0}}
check_integer NGPUS 1
check_integer NNODES 1
check_integer NODE_RANK 0
if ((NGPUS * NNODES == 1)); then
    exec "$python" train.py "$@"
fi

port=$$ # a free one, so that two runs fit on one machine
if ((NNODES > 1)); then
    port=${SLURM_JOB_ID:-9500}
    if [[ -n ${SLURM_JOB_ID:-} && -z ${SLURM_STEP_ID:-} ]]; then
        echo "error: $NNODES nodes, but this runs on one; put 'srun --ntasks-per-node=1' before it" >&2
        exit 1
    fi
    if [[ -z ${MASTER_ADDR:-} && -n ${SLURM_JOB_NODELIST:-} ]]; then
        MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    fi
    if [[ -z ${MASTER_ADDR:-} ]]; then
        echo "error: NNODES=$NNODES needs MASTER_ADDR, the host name of node 0" >&2
        exit 1
    fi
fi
set -- launcher=ddp "$@" # a later launcher= overrides it

# torchrun replaces exit statuses, so the run writes its own to a file. torchrun also kills its
# processes 30 s after SIGTERM, too soon for saving a large model.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
TAPE_STATUS=$(mktemp)
export TAPE_STATUS TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-600}
"$python" script/torchrun.py --nnodes "$NNODES" --nproc-per-node "$NGPUS" \
    --node-rank "$NODE_RANK" --master-addr "${MASTER_ADDR:-localhost}" \
    --master-port "${MASTER_PORT:-$((20000 + port % 20000))}" train.py "$@" &
torchrun=$!
trap 'kill -TERM "$torchrun"; trap "" TERM' TERM
trap 'kill -INT "$torchrun"; trap "" INT' INT
while # a signal interrupts the wait, but not torchrun
    status=0
    wait "$torchrun" || status=$?
    kill -0 "$torchrun" 2>/dev/null
do :; done
if [[ -s $TAPE_STATUS ]]; then
    status=$(<"$TAPE_STATUS")
elif ((status == 143)); then # SIGTERM, before torchrun had started a process
    status=75
fi
rm -f "$TAPE_STATUS"
exit "$status"
