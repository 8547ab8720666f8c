#!/usr/bin/env bash
# Packs into one folder what a machine with a GPU needs to run dev/gpu/session.py: programs for sm_90a without MPI, the
# host device's reference runs, and token shards. That machine needs Python and cuBLASLt but no compiler; NCCL is
# optional.
#
#   dev/gpu/pack.sh DIR [DATA_FOLDER]     DATA_FOLDER has *train*.bin and *val*.bin, or the same packed with xz
#
# JOBS=N (default 2), NVCC and CXX work as for make. The folder is created again; only results.tar.gz in it is kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
pack=${1:?usage: dev/gpu/pack.sh DIR [DATA_FOLDER]}
data=${2:-}
cuda=build/cuda-sm_90a-nompi
options=(GPU_ARCH=sm_90a USE_MPI=0 USE_NCCL=1 ${NVCC:+"NVCC=$NVCC"} ${CXX:+"CXX=$CXX"})

make -s -j"${JOBS:-2}" "${options[@]}" train_gpt check_card test-gpu test-ranks-gpu probe kernel-times
make -s -j"${JOBS:-2}" ${CXX:+"CXX=$CXX"} train_gpt_cpu
host=build/cpu-native
if [[ ! -x $host/train_gpt_cpu ]]; then host=build/cpu-native-nompi; fi

mkdir -p "$pack"
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
mkdir "$programs/lib"
for program in train_gpt check_card test_gpu test_ranks probe libkernel_times.so; do
    cp "$cuda/$program" "$programs/$program"
    strip "$programs/$program"
done
cp -L /usr/lib/*/libgomp.so.1 "$programs/lib/"  # the last choice in the session's search
tar -cJf "$pack/programs.tar.xz" -C "$programs" .
python3 dev/gpu/make_references.py --build "$host" --out "$pack/references"

if [[ -n $data ]]; then
    mkdir -p "$pack/data"
    shopt -s nullglob
    for shard in "$data"/*train*.bin "$data"/*val*.bin; do
        xz -9 -T0 -k -c "$shard" >"$pack/data/$(basename "$shard").xz"
    done
    cp "$data"/*train*.bin.xz "$data"/*val*.bin.xz "$data"/*.bin.json "$pack/data/" 2>/dev/null || true
fi
git describe --always --dirty >"$pack/version" 2>/dev/null || true
du -ah --max-depth=1 "$pack" | sort -h
kib=$(du -sk "$pack" | cut -f 1)
echo "$pack: $((kib / 1024)).$((kib % 1024 * 10 / 1024)) MiB"
if ((kib > 60 * 1024)); then echo "more than 60 MiB: take fewer shards"; fi
