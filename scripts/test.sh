#!/usr/bin/env bash
# Installs what is missing, builds everything this machine can build and runs every test: about half an hour on two cores
# from a clean clone, less when little has changed. Ends with "N passed, N failed, N skipped" and exit code 0 or 1.
# Without nvcc the CUDA stages are skipped; with CI=true they are required. scripts/soak.sh has the long ones.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./scripts/setup.sh || exit 1
source scripts/stages.sh

JOBS=${JOBS:-2}
NATIVE=build/cpu-native
# Cases that take too long under a sanitizer; the plain build runs them in four ways. Doctest filters.
SLOW_UNDER_TSAN=${SLOW_UNDER_TSAN:-gpt2 fp8: any loss scale*,gpt2 fp8: evaluation leaves*,gpt2 fp8: a non-finite*,gpt2 fp8: follows*,gpt2 fp8 outliers*,gpt2 fp8 fallback*,gpt2 fp8 blocks: recompute*,traffic*,layernorm_backward_fp8 walks*,attention_backward_fp8 is*e4m3*,layernorm_backward*all*float*,gpt2 fp8 head*,gpt2 fp8: gradients are right*,gpt2 fp8: every recompute*,spikes: silent*,spikes: limits*,beyond the largest*,gpt2: the first ten*,gpt2 fp8 blocks: products*,gpt2 fp8: twelve*,gpt2 fp8: weight scales*,gpt2 fp8 blocks: an infinite*,gpt2 fp8: the BF16 copies*,gpt2 fp8: sequences*,spikes: reported*,20 steps equal*,softmax_cross_entropy: losses*float*,layernorm_forward*and without*float*,layernorm_backward_fp8*train*e4m3*,gelu_backward_fp8*e4m3*}
SLOW_UNDER_ASAN=${SLOW_UNDER_ASAN:-gpt2 fp8: follows*,traffic: inputs*}

# gcc 12's ThreadSanitizer does not know the address spaces of systems that randomise more than 28 bits of them.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

# ---- cheap checks first --------------------------------------------------------------------------------------------

stage "rules of the house" unittest python3 test/end_to_end/test_house.py
stage "python: data preparation" unittest python3 -m unittest discover -s test/data -p 'test_*.py'
stage "python: scripts" unittest .venv/bin/python test/end_to_end/test_scripts.py

# ---- host build ----------------------------------------------------------------------------------------------------

stage "host: build" check make -s -j"$JOBS" train_gpt_cpu test-cpu test-ranks-binary probe-cpu gradients-cpu
beside stage "host: threads ascending" doctest $NATIVE/test_cpu --no-colors
stage "host: threads descending" doctest env LLMC_ORDER=descending $NATIVE/test_cpu --no-colors
join
beside stage "host: threads and streams in random order" doctest env LLMC_ORDER=random LLMC_STREAMS=random \
    $NATIVE/test_cpu --no-colors
stage "host: lazy streams, guarded memory" doctest env LLMC_STREAMS=lazy LLMC_GUARD=1 $NATIVE/test_cpu --no-colors
join
# Two at a time, about as long as each other, on one core each.
programs=(env OMP_NUM_THREADS=1 python3 -m unittest discover -s test/end_to_end)
ranks_and_programs() {
    stage "several ranks" unittest python3 test/end_to_end/test_ranks.py
    stage "end to end: input, files, FP8, training" unittest "${programs[@]}" -p 'test_run_[bft]*.py'
}
beside ranks_and_programs
stage "FP8 follows BF16, 300 steps" unittest env OMP_NUM_THREADS=1 \
    .venv/bin/python test/end_to_end/test_precisions.py FollowsBf16 Refused
stage "end to end: ranks, profiles, GPU session" unittest "${programs[@]}" -p 'test_run_[gpr]*.py'
join
demo=$(mktemp -d)
stage "demo, 20 steps" check ./scripts/demo.sh --max-steps 20 --out "$demo/run"
stage "demo, picture" check test -s "$demo/run/compare.png"
rm -rf "$demo"

# ---- sanitizers ----------------------------------------------------------------------------------------------------

# Leaks are not looked for: fibers' stacks hide pointers from it.
stage "AddressSanitizer, UBSan: build" check make -s -j"$JOBS" SANITIZE=address test-cpu $NATIVE-address/train_gpt_cpu \
    test-ranks-binary
asan_tests=(env ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 $NATIVE-address/test_cpu --no-colors
    "--test-case-exclude=$SLOW_UNDER_ASAN")
asan_half="*test/kernels/*,*test/device/*,*test/model/traffic*" # about as long as the rest
beside stage "AddressSanitizer, UBSan: kernels" doctest "${asan_tests[@]}" "--source-file=$asan_half"
stage "AddressSanitizer, UBSan: other tests" doctest "${asan_tests[@]}" "--source-file-exclude=$asan_half"
join
# Over TCP: MPI's own library is not instrumented.
rank_tests=(python3 test/end_to_end/test_ranks.py Collectives.test_tcp
    Collectives.test_tcp_with_lazy_streams_and_guarded_memory Faults.test_tcp_rank_killed)
stage "AddressSanitizer, UBSan: several ranks" unittest env ASAN_OPTIONS=detect_leaks=0 \
    TEST_RANKS=$NATIVE-address/test_ranks "${rank_tests[@]}"
stage "AddressSanitizer, UBSan: training" check env ASAN_OPTIONS=detect_leaks=0 \
    python3 test/end_to_end/trainer.py --short-run $NATIVE-address/train_gpt_cpu
stage "AddressSanitizer, UBSan: broken files" check env ASAN_OPTIONS=detect_leaks=0 \
    TRAIN_GPT=$NATIVE-address/train_gpt_cpu python3 test/end_to_end/fuzz.py --cases 60

# One OS thread: the GPU's threads are contexts of their own, and OpenMP's runtime is not instrumented.
stage "ThreadSanitizer: build" check make -s -j"$JOBS" SANITIZE=thread test-cpu $NATIVE-thread/train_gpt_cpu \
    test-ranks-binary
tsan=(env OMP_NUM_THREADS=1 "TSAN_OPTIONS=halt_on_error=1 atexit_sleep_ms=0" "${fixed_addresses[@]}")
tsan_tests=("${tsan[@]}" $NATIVE-thread/test_cpu --no-colors ${SLOW_UNDER_TSAN:+"--test-case-exclude=$SLOW_UNDER_TSAN"})
tsan_half="*test/kernels/a*,*test/kernels/b*,*test/kernels/c*,*test/kernels/e*,*test/kernels/g*,*test/kernels/q*,*test/optim/*" # about as long as the rest
beside stage "ThreadSanitizer: kernels and optimizer" doctest "${tsan_tests[@]}" "--source-file=$tsan_half"
stage "ThreadSanitizer: other tests" doctest "${tsan_tests[@]}" "--source-file-exclude=$tsan_half"
join
stage "ThreadSanitizer: several ranks" unittest "${tsan[@]}" env TEST_RANKS=$NATIVE-thread/test_ranks "${rank_tests[@]}"
stage "ThreadSanitizer: training" check "${tsan[@]}" \
    python3 test/end_to_end/trainer.py --short-run $NATIVE-thread/train_gpt_cpu

# ---- CUDA build ----------------------------------------------------------------------------------------------------

if command -v nvcc >/dev/null || [[ -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
    # sm_90a last, so that ./train_gpt is that one.
    stage "CUDA: build for sm_80, BF16 only" check make -s -j"$JOBS" train_gpt GPU_ARCH=sm_80 PRECISION=BF16
    stage "CUDA: build for sm_90a" check make -s -j"$JOBS" train_gpt test-gpu test-ranks-gpu probe gradients GPU_ARCH=sm_90a
    stage "CUDA: registers and spills" check python3 scripts/check_kernels.py build/cuda-sm_90a build/cuda-sm_80-BF16
else
    require "CUDA: build for sm_80, BF16 only" "no nvcc"
    require "CUDA: build for sm_90a" "no nvcc"
    require "CUDA: registers and spills" "no nvcc"
fi
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
if [[ $capability =~ ^[0-9]+$ ]]; then
    stage "GPU: build" check make -s -j"$JOBS" train_gpt test-gpu test-ranks-gpu
    stage "GPU: tests" doctest "build/cuda-sm_${capability/90/90a}/test_gpu" --no-colors
    stage "GPU: ranks that share it" check env TEST_RANKS="build/cuda-sm_${capability/90/90a}/test_ranks" \
        python3 test/end_to_end/test_ranks.py Collectives.test_shared_device
else
    skip "GPU: tests" "no GPU"
fi

finish
