#!/bin/bash
#SBATCH --job-name=ndshm-upload
#SBATCH --array=0-3
#SBATCH --requeue
# Writes one file of elements in C order, which all nodes see, into a volume that is there: each task of the array one part of it.
#
#   sbatch --export=ALL,FILE=/scratch/em.bin,TARGET=zarr://s3://bucket/em,MARKERS=/scratch/em.markers docs/scale/slurm.sh
#
# As often as you like: tasks whose part is marked as done end at once.
set -euo pipefail

exec ndshm upload --file "$FILE" "$TARGET" --order c --shard auto --markers "$MARKERS" --quiet
