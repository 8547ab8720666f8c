# Builds the programs on the virtual GPU and queues everything that runs on it as an H100. scripts/test.sh sources it,
# after dev/stages.sh.
virtual=build/virtual
stage "virtual GPU: build" check make -s -j"$JOBS" virtual test-virtual PTX=1 GPU_ARCH=sm_90a
# Leaves out the test that makes a GPU convert every float.
virtual_tests=(OMP_NUM_THREADS=1 $virtual/test_gpu --no-colors --test-suite-exclude=soak,once
    "--test-case-exclude=*conversions of floats*")
# The longest tests first, because they end the queue.
queue stage "virtual GPU: kernels, races" doctest env VIRTUAL_GPU_RACES=1 VIRTUAL_GPU_ORDER=random VIRTUAL_GPU_MULTIPROCESSORS=2 \
    "${virtual_tests[@]}" "--source-file=*test/kernels/*,*test/fp8/scaling.cpp,*test/optim/*"
queue stage "virtual GPU: CUDA tests, lazy streams" doctest env VIRTUAL_GPU_STREAMS=lazy "${virtual_tests[@]}" \
    "--source-file-exclude=*test/kernels/*"
queue stage "virtual GPU: check_card" unittest python3 test/end_to_end/test_check_card.py OnVirtualGpu
queue stage "virtual GPU: programs" unittest .venv/bin/python dev/virtual_gpu/test/test_programs.py
queue stage "virtual GPU: contracts" doctest $virtual/test_virtual_gpu --no-colors
queue stage "virtual GPU: table of counts" unittest python3 dev/virtual_gpu/test/test_kernel_counts.py
queue stage "virtual GPU: names in mutation" unittest python3 dev/virtual_gpu/test/test_mutation.py
queue stage "virtual GPU: counts of kernels" check python3 dev/virtual_gpu/kernel_counts.py --check
