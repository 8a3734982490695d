#!/bin/bash
# Daemons and trainers of a run, for: sbatch FILE. Edit what your site does otherwise.
#SBATCH --job-name=<<name>>
#SBATCH --nodes=<<all_nodes>>
#SBATCH --ntasks-per-node=1
#SBATCH --mem=<<memory>>M
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
set -euo pipefail

# Where all nodes see the cluster file and the logs.
folder="${SLURM_SUBMIT_DIR:-$PWD}/<<name>>-$SLURM_JOB_ID"
mkdir -p "$folder"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

{
    for part in <<parts>>; do
        printf '[[daemon]]\npart = %d\naddress = "%s:<<port>>"\n\n' "$part" "${hosts[$part]}"
    done
    printf '%s\n' <<tls>>  #? tls
} > "$folder/cluster.toml"

# Task n of this step serves partition n. --overlap lets trainers run on the same nodes.
srun --overlap --nodes=<<daemons>> --ntasks=<<daemons>> --relative=0 --kill-on-bad-exit=0 \
    --output="$folder/daemon-%t.log" \
    <<daemon>> &
serving=$!
stop() {
    atta stop --cluster "$folder/cluster.toml" || kill "$serving" 2>/dev/null || true
    wait "$serving" || true
}
trap stop EXIT
trap 'exit 143' TERM

# Machine n of this step is task n. They wait for the daemons and for each other.  #? trainers
srun --overlap --nodes=<<nodes>> --ntasks=<<nodes>> --relative=0 \  #? trainers
    <<trainer>> &  #? trainers
wait $!  #? trainers
# Until the time of the job ends, or scancel.  #? alone
wait "$serving"  #? alone
