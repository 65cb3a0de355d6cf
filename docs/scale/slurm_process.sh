#!/bin/bash
#SBATCH --job-name=ndshm-process
#SBATCH --array=0-3
#SBATCH --requeue
# Brings one part of a volume into shared memory, lets a program change it in place, and writes it into another volume that is there.
#
#   sbatch --export=ALL,PARTS=4,SOURCE=..,TARGET=..,PROGRAM=/home/me/program docs/scale/slurm_process.sh
#
# The parts are those of the target, so that no two tasks write the same stored object. The number of parts is said, and not taken
# from the array: a task that failed can be submitted again alone, as --array=2.
set -euo pipefail

part=$SLURM_ARRAY_TASK_ID
region=$(ndshm plan "$TARGET" --shards "$PARTS" --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["parts"][int(sys.argv[1])]["bbox"] or "")' "$part")
[ -n "$region" ] || exit 0 # there are more parts than stored objects

# Of this task alone: others of the same array may run on the same node.
array=ndshm-part-${SLURM_ARRAY_JOB_ID:-0}-$part
trap 'ndshm unlink "$array" > /dev/null 2>&1 || true' EXIT

ndshm download "$SOURCE" "$array" --bbox="$region" --replace --quiet
"$PROGRAM" "$array" "$region"
ndshm upload "$array" "$TARGET" --order c --bbox="$region" --quiet
