#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests. Ends with "N passed, N failed, N skipped" and exit code 0 or 1.
#
#   ./scripts/test.sh           the tests to run after a change: the host build, its tests, several ranks, the program
#                               end to end
#   ./scripts/test.sh --all     also other orders of threads and streams, guarded memory, sanitizers, and, where there is
#                               nvcc, the CUDA builds on the virtual GPU
#   CI=true ./scripts/test.sh   the same, and nvcc is required
#
# dev/soak.sh has the long tests; dev/notes/testing.md says how long these take. JOBS is the number of cores to use.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ALL=
case "${1:-}" in
    --all) ALL=1 ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
    "") if [[ ${CI:-} == true ]]; then ALL=1; fi ;;
    *) echo "test.sh: unknown argument '$1' (--all, --help)" >&2 && exit 2 ;;
esac

./scripts/setup.sh || exit 1
source dev/stages.sh
NATIVE=build/cpu-native
launching=$(printf '*test/%s/*,' device fp8 linear optim shard train)

# ---- build, and checks that need none ------------------------------------------------------------------------------

host=(train_gpt_cpu check_card_cpu test-cpu test-ranks-binary)
if [[ -n $ALL ]]; then
    host+=(probe-cpu)  # the GPU session's tests use it
    # The host's tests without these folders, whose code launches kernels: their tests run in another order below.
    other_tests=("--test-suite-exclude=soak" "--source-file-exclude=*test/kernels/*,$launching")
else
    export BRIEF=1  # fewer recipes and shardings, as marked in the tests
    other_tests=("--test-suite-exclude=soak,once" "--source-file-exclude=*test/kernels/*")
fi
# These checks need no build, and use the cores that it leaves.
queue stage "host: build" check make -s -j"$JOBS" "${host[@]}"
queue stage "rules of the house" unittest python3 test/end_to_end/test_house.py
queue stage "python: data preparation" unittest .venv/bin/python -m unittest discover -s test/data -p 'test_*.py'
queue stage "python: scripts" unittest .venv/bin/python test/end_to_end/test_scripts.py
queue stage "python: comparisons of runs" unittest .venv/bin/python test/end_to_end/test_comparing.py
queue stage "python: reports on kernels" unittest .venv/bin/python test/end_to_end/test_check_kernels.py
queue stage "python: broken records" unittest .venv/bin/python test/end_to_end/test_broken_records.py
drain

# ---- host device ---------------------------------------------------------------------------------------------------

# Training takes a third longer with matmuls for a core type that does not match this processor.
core=${OPENBLAS_CORETYPE:-$(python3 test/end_to_end/core_types.py --fastest)}
if [[ -n $core ]]; then export OPENBLAS_CORETYPE=$core; fi
queue stage "several ranks" unittest python3 test/end_to_end/test_ranks.py
queue stage "FP8 follows BF16, 60 steps" unittest env COMPARE_RECIPES=delayed COMPARE_STEPS=60 \
    .venv/bin/python test/end_to_end/test_precisions.py FollowsBf16.test_sample_corpus Refused
queue stage "host: loops beside kernels" doctest env LLMC_LOOPS=compare OMP_NUM_THREADS=2 $NATIVE/test_cpu --no-colors \
    "--source-file=*test/kernels/*,*test/optim/*,*test/comm/reductions*,*test/fp8/scaling*"
# Loops replace kernels, whose bits the stage before compares: whole models train in a third of the time.
queue stage "host: other tests" doctest env LLMC_LOOPS=alone OMP_NUM_THREADS=2 $NATIVE/test_cpu --no-colors \
    "${other_tests[@]}"
# The largest files first: they take longest, and a long one at the end would run alone.
mapfile -t files < <(ls -S test/end_to_end/test_run_*.py)
for file in "${files[@]}"; do
    name=$(basename "$file" .py)
    if [[ -z $ALL && $name == test_run_gpu_session ]]; then continue; fi
    queue stage "end to end: ${name#test_run_}" unittest python3 "$file"
done
queue stage "end to end: check_card" unittest python3 test/end_to_end/test_check_card.py OnHost
queue stage "watching runs" unittest .venv/bin/python test/end_to_end/test_watching.py
queue stage "GGUF files" unittest .venv/bin/python test/end_to_end/test_gguf.py
queue stage "report of runs" unittest .venv/bin/python test/end_to_end/test_report.py
# The tests mark the suites that are left out here and below (test/suites.h).
if [[ -n $ALL ]]; then
    # Tests of code that launches kernels, with streams in random order. Those that have no loop run with their threads
    # in random order; the others do so on the virtual GPU, which sees every race and every byte outside an array.
    queue stage "host: random order, guarded memory" doctest \
        env LLMC_LOOPS=alone LLMC_ORDER=random LLMC_STREAMS=random LLMC_GUARD=1 $NATIVE/test_cpu --no-colors \
        "--test-suite-exclude=soak,once" "--source-file=$launching"
    queue stage "flags at random, ends of runs at random, briefly" check bash -c \
        'python3 test/end_to_end/combinations.py --cases 2 --seed 3 && python3 test/end_to_end/lives.py --runs 1 --seed 3'
fi
demo=$(mktemp -d)
trap 'rm -rf "$demo"' EXIT
# These run one after the other, because both write out/demo/data.
queue stage "demos, 20 and 10 steps" check bash -c './scripts/demo.sh --max-steps 20 --out "$0" && test -s "$0/compare.png" &&
    ./scripts/demo.sh --modern --max-steps 10 --out "$0/modern" && test -s "$0/modern/steps.png"' "$demo/run"
queue stage "tour from text to a model, 10 steps" check \
    bash -c './scripts/tour.sh --steps 10 --vocab 300 --text "dev/notes/*.md" --out "$0" && test -s "$0/report.html"' "$demo/tour"

if [[ -z $ALL ]]; then
    drain
    echo "Not run: some recipes, shardings and long tests, random order with guarded memory, sanitizers, the GPU session's"
    echo "rehearsal, CUDA builds on the virtual GPU (./scripts/test.sh --all);"
    echo "and, hours long (make soak), every order, recipe, matrix of builds and ranks, core type, mutation, fuzzing."
    finish
    exit
fi
# All tests wait for the last build, so that no core is idle until the last tests.

# ---- sanitizers ----------------------------------------------------------------------------------------------------

# No leak detection, because fibers' stacks hide pointers from it. Uses the third order of threads and streams.
asan=(env ASAN_OPTIONS=detect_leaks=0 LLMC_LOOPS=alone LLMC_ORDER=descending LLMC_STREAMS=lazy)
# gcc 12's ThreadSanitizer cannot handle systems that randomise more than 28 bits of addresses.
tsan=(env "TSAN_OPTIONS=halt_on_error=1 atexit_sleep_ms=0")
if setarch "$(uname -m)" -R true 2>/dev/null; then tsan+=(setarch "$(uname -m)" -R); fi
# Over TCP, because MPI's own library is not instrumented.
rank_tests=(python3 test/end_to_end/test_ranks.py Collectives.test_tcp Faults.test_tcp_rank_killed)

stage "AddressSanitizer, UBSan: build" check make -s -j"$JOBS" SANITIZE=address test-cpu $NATIVE-address/train_gpt_cpu \
    test-ranks-binary
# Leaves out tests of objects that this build takes from the ordinary one (UNCHECKED in dev/build.mk); make soak has
# them.
queue stage "AddressSanitizer, UBSan: tests" doctest "${asan[@]}" $NATIVE-address/test_cpu --no-colors \
    "--test-suite-exclude=soak,once,not under sanitizers" \
    "--source-file-exclude=*test/kernels/*,*test/dev/*,*test/base/*,*test/flags/*,*test/log/*,*test/plan/*,*test/run/*,*test/device/formats.cu,*test/device/math.cu"
queue stage "AddressSanitizer, UBSan: broken files" check "${asan[@]}" \
    TRAIN_GPT=$NATIVE-address/train_gpt_cpu python3 test/end_to_end/fuzz.py --cases 60
queue stage "AddressSanitizer, UBSan: several ranks" unittest "${asan[@]}" \
    TEST_RANKS=$NATIVE-address/test_ranks "${rank_tests[@]}" Collectives.test_tcp_with_lazy_streams_and_guarded_memory
queue stage "AddressSanitizer, UBSan: training" check "${asan[@]}" \
    python3 test/end_to_end/trainer.py --short-run $NATIVE-address/train_gpt_cpu

# One OS thread: the GPU's threads are separate contexts, and OpenMP's runtime is not instrumented.
stage "ThreadSanitizer: build" check make -s -j"$JOBS" SANITIZE=thread test-cpu $NATIVE-thread/train_gpt_cpu \
    test-ranks-binary
# The virtual GPU finds races in the kernels' PTX (below). make soak runs all tests, with kernels in their source.
queue stage "ThreadSanitizer: tests" doctest "${tsan[@]}" $NATIVE-thread/test_cpu --no-colors \
    "--source-file=*test/comm/*,*test/data/loader*,*test/checkpoint/*,*test/run/stop*,*test/device/transfer*" \
    "--source-file-exclude=*test/comm/reductions.cpp" \
    "--test-suite-exclude=soak,once,not under sanitizers"
queue stage "ThreadSanitizer: several ranks" unittest "${tsan[@]}" env TEST_RANKS=$NATIVE-thread/test_ranks "${rank_tests[@]}"
queue stage "ThreadSanitizer: training" check "${tsan[@]}" \
    python3 test/end_to_end/trainer.py --short-run $NATIVE-thread/train_gpt_cpu

# ---- CUDA build ----------------------------------------------------------------------------------------------------

if command -v nvcc >/dev/null || [[ -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
    stage "CUDA: build for sm_90a" check make -s -j"$JOBS" train_gpt test-gpu test-ranks-gpu probe PTX=1 \
        GPU_ARCH=sm_90a
    stage "CUDA: registers and spills" check python3 dev/check_kernels.py build/cuda-sm_90a-ptx
    source dev/virtual_gpu/stages.sh
else
    require "CUDA: build for sm_90a" "no nvcc"
    require "CUDA: registers and spills" "no nvcc"
    require "virtual GPU" "no nvcc"
fi
drain
gpu_build=$(make -s gpu-build)
if [[ -n $gpu_build ]]; then
    stage "GPU: build" check make -s -j"$JOBS" train_gpt test-gpu test-ranks-gpu
    stage "GPU: tests" doctest "$gpu_build/test_gpu" --no-colors
    stage "GPU: ranks that share it" check env TEST_RANKS="$gpu_build/test_ranks" \
        python3 test/end_to_end/test_ranks.py Collectives.test_shared_device
else
    skip "GPU: tests" "no GPU"
fi

echo "Not run, hours long: every order, recipe, matrix of builds and ranks, core type of OpenBLAS, mutation, fuzzing (make soak)."
finish
