#!/usr/bin/env bash
# Context extension on a laptop: extends two small RoPE models (trained first if missing) to four times
# their length by every method, and compares the methods: bash script/extend_demo.sh [settings]
#
#   TYPES      the methods, entries of config/peft; all seven by default
#   SEEDS      of the new weights and the order of the text; 0 by default
#   JOBS       see script/sweep.sh
#   NAME       folder in output/ for runs, logs, table and figure; extend by default
#   settings   of the extensions, e.g. trainer.max_steps=100
#
# The base models are output/rope_local (script/train.sh), evaluated by perplexity up to 1,024 tokens, and
# output/passkey_rope_0 (experiment=passkey), evaluated by passkey retrieval up to 512 tokens.
# Rerunning the command resumes the work.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/sweep.sh" extension peft -- "$@"
