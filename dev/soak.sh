#!/usr/bin/env bash
# The long tests, for unattended hours: every order and setting, many build configurations, fuzzing, and a mutation run
# that removes barriers and waits one by one and must notice each removal. scripts/test.sh runs one of each. SEEDS=20,
# FUZZ=2000 and LIVES=400 set the amount. TINYSHAKESPEARE=DIR also trains on that folder's shards.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./scripts/setup.sh || exit 1
STAGE_LIMIT=${STAGE_LIMIT:-36000}
source dev/stages.sh

SEEDS=${SEEDS:-20}
FUZZ=${FUZZ:-2000}
LIVES=${LIVES:-400}
NATIVE=build/cpu-native
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi
tsan=(env OMP_NUM_THREADS=1 "TSAN_OPTIONS=halt_on_error=1 atexit_sleep_ms=0" "${fixed_addresses[@]}")
export ASAN_OPTIONS=detect_leaks=0
export LARGEST_GIB=6  # of models that train a step (test_run_architectures.py)

stage "host: build" check make -s -j"$JOBS" train_gpt_cpu check_card_cpu test-cpu test-ranks-binary probe-cpu
for streams in now lazy random; do
    for guard in 0 1; do
        settings=(env LLMC_STREAMS=$streams LLMC_GUARD=$guard)
        for order in ascending descending; do
            stage "host: $order, streams $streams, guard $guard" doctest \
                "${settings[@]}" LLMC_ORDER=$order $NATIVE/test_cpu --no-colors
        done
        for ((seed = 1; seed <= SEEDS; seed++)); do
            stage "host: random $seed, streams $streams, guard $guard" doctest \
                "${settings[@]}" LLMC_ORDER=random LLMC_SEED=$seed $NATIVE/test_cpu --no-colors
        done
        stage "end to end, streams $streams, guard $guard" unittest \
            "${settings[@]}" python3 -m unittest discover -s test/end_to_end -p 'test_run_*.py'
    done
done
# One machine stands for many: it uses OpenBLAS's products of every core type that this CPU can run, with thread counts
# that split them differently. Without AVX-512, oneDNN computes none.
for core in $(python3 test/end_to_end/core_types.py); do
    for threads in 1 2 4; do
        played=(env OPENBLAS_CORETYPE="$core" ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS="$threads")
        stage "as $core, $threads threads: host" doctest "${played[@]}" $NATIVE/test_cpu --no-colors
        stage "as $core, $threads threads: end to end" unittest "${played[@]}" \
            python3 -m unittest discover -s test/end_to_end -p 'test_run_*.py'
        stage "as $core, $threads threads: FP8 follows BF16" unittest "${played[@]}" COMPARE_RECIPES=all \
            .venv/bin/python test/end_to_end/test_precisions.py FollowsBf16.test_sample_corpus
    done
done
for kilobytes in 163 99; do
    stage "host: kernels, $kilobytes KB of shared memory a block" doctest env LLMC_SHARED_KB=$kilobytes \
        $NATIVE/test_cpu --no-colors "--source-file=*test/kernels/*,*test/linear/*,*test/fp8/*,*test/model/*"
done
stage "several ranks: every stage of sharding, 1 to 8 ranks" unittest env TRAINING_RANKS="1 2 3 4 8" \
    TEST_RANKS=$NATIVE/test_ranks python3 test/end_to_end/test_ranks.py Training
stage "checkpoints: every call, recipe and pair of ranks" unittest env CHECKPOINT_MATRIX=1 \
    python3 test/end_to_end/test_run_checkpoints.py
stage "checkpoints: a save cut at every byte" doctest env CHECKPOINT_MATRIX=1 $NATIVE/test_cpu --no-colors \
    "--test-case=saver: *"
stage "FP8 follows BF16, three seeds" unittest env COMPARE_SEEDS="1337 1 2" COMPARE_BATCH=8 COMPARE_RECIPES=all COMPARE_MODELS=all \
    .venv/bin/python test/end_to_end/test_precisions.py FollowsBf16.test_sample_corpus
if [[ -n ${TINYSHAKESPEARE:-} ]]; then
    stage "FP8 follows BF16, tinyshakespeare, three seeds" unittest env COMPARE_SEEDS="1337 1 2" COMPARE_BATCH=8 COMPARE_RECIPES=all \
        COMPARE_MODELS=all .venv/bin/python test/end_to_end/test_precisions.py FollowsBf16.test_tinyshakespeare
else
    skip "FP8 follows BF16, tinyshakespeare" "TINYSHAKESPEARE names no folder with its shards"
fi
# Checks the demo's promises on every core type and three seeds: FP8 and the control end within half a percent of BF16,
# and both precisions within 20 % of the floor.
for core in $(python3 test/end_to_end/core_types.py); do
    for seed in 1337 1 2; do
        out=out/demo-$core-$seed
        rm -rf "$out"
        stage "demo as $core, seed $seed" check env OPENBLAS_CORETYPE="$core" ONEDNN_MAX_CPU_ISA=AVX2 \
            ./scripts/demo.sh --seed "$seed" --out "$out"
        stage "demo as $core, seed $seed: gaps" check .venv/bin/python scripts/compare_runs.py \
            "$out"/{bf16,control,fp8} --max-gap 0.5% --from 600 --out "$out/compare.png"
        for precision in bf16 fp8; do
            stage "demo as $core, seed $seed: floor, $precision" check \
                python3 test/end_to_end/trainer.py --near-floor "$out/$precision" 1.2
        done
    done
done

stage "AddressSanitizer, UBSan: build" check make -s -j"$JOBS" SANITIZE=address UNCHECKED= test-cpu \
    $NATIVE-address-whole/train_gpt_cpu
for order in ascending descending random; do
    stage "AddressSanitizer, UBSan: $order" doctest \
        env LLMC_ORDER=$order LLMC_STREAMS=lazy LLMC_GUARD=1 $NATIVE-address-whole/test_cpu --no-colors
done
stage "AddressSanitizer, UBSan: end to end" unittest env TRAIN_GPT=$NATIVE-address-whole/train_gpt_cpu \
    python3 -m unittest discover -s test/end_to_end -p 'test_run_*.py'
stage "strangers and lying ranks, AddressSanitizer" check env TRAIN_GPT=$NATIVE-address-whole/train_gpt_cpu \
    python3 test/end_to_end/hostile_peers.py --seed "$RANDOM"
stage "fuzzing with AddressSanitizer" check env TRAIN_GPT=$NATIVE-address-whole/train_gpt_cpu \
    python3 test/end_to_end/fuzz.py --cases "$FUZZ" --seed "$RANDOM"

# Every Python in TRANSFORMERS_PYTHONS has a version of transformers.
for python in ${TRANSFORMERS_PYTHONS:-.venv/bin/python}; do
    stage "Hugging Face's transformers of $python" unittest "$python" test/end_to_end/test_transformers.py
done

stage "combinations of flags at random" check python3 test/end_to_end/combinations.py --cases "$FUZZ" --seed "$RANDOM"
stage "runs that die at random moments" check python3 test/end_to_end/lives.py --lives "$LIVES" --seed "$RANDOM"
stage "runs whose inputs change between their lives" check \
    python3 test/end_to_end/changed_inputs.py --lives "$LIVES" --seed "$RANDOM"

if command -v clang++ >/dev/null; then
    stage "libFuzzer: every kind of file that is read" check make -s fuzz FUZZ_SECONDS=600
else
    skip "libFuzzer: every kind of file that is read" "no clang++"
fi

stage "ThreadSanitizer: build" check make -s -j"$JOBS" SANITIZE=thread UNCHECKED= test-cpu \
    $NATIVE-thread-whole/train_gpt_cpu test-ranks-binary
stage "ThreadSanitizer: all tests" doctest "${tsan[@]}" $NATIVE-thread-whole/test_cpu --no-colors
stage "ThreadSanitizer: several ranks, lazy streams" unittest "${tsan[@]}" env TEST_RANKS=$NATIVE-thread-whole/test_ranks \
    python3 test/end_to_end/test_ranks.py Collectives.test_tcp_with_lazy_streams_and_guarded_memory
stage "ThreadSanitizer: training" check "${tsan[@]}" \
    python3 test/end_to_end/trainer.py --short-run $NATIVE-thread-whole/train_gpt_cpu

stage "mutation: every barrier and wait is needed" check make mutation

for precision in BF16 FP32; do
    stage "host: build for x86-64-v3, $precision" check \
        make -s -j"$JOBS" build/cpu-x86-64-v3-$precision/train_gpt_cpu MARCH=x86-64-v3 PRECISION=$precision
done
if command -v nvcc >/dev/null || [[ -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
    for arch in sm_80 sm_89 sm_90a sm_100 sm_120; do
        stage "CUDA: build for $arch" check make -s -j"$JOBS" WITHOUT_DEVICE= test-gpu virtual test-virtual GPU_ARCH=$arch PTX=1
        stage "CUDA: registers and spills on $arch" check python3 dev/check_kernels.py build/cuda-$arch-ptx
        programs=build/virtual-$arch
        if [[ $arch == sm_90a ]]; then programs=build/virtual; fi
        for streams in now lazy random; do
            stage "virtual GPU: $arch, streams $streams" doctest env VIRTUAL_GPU_CARD=$arch VIRTUAL_GPU_STREAMS=$streams \
                VIRTUAL_GPU_ORDER=random $programs/test_gpu --no-colors
        done
        stage "virtual GPU: $arch, races" doctest env VIRTUAL_GPU_CARD=$arch VIRTUAL_GPU_RACES=1 $programs/test_gpu --no-colors
        stage "virtual GPU: $arch, check_card" unittest env VIRTUAL_GPU_CARD=$arch VIRTUAL_PROGRAMS=$programs \
            python3 test/end_to_end/test_check_card.py OnVirtualGpu
        stage "virtual GPU: $arch, approximations at their worst" doctest \
            env VIRTUAL_GPU_CARD=$arch VIRTUAL_GPU_APPROXIMATE=1 $programs/test_gpu --no-colors
    done
else
    require "CUDA: builds" "no nvcc"
fi

finish
