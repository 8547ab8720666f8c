# The builds of developers: tests, sanitizers, the probe, fuzzing, packages. Included by the Makefile.
#
# Marks in a file's line "// build: ..." that matter here, next to `per device` and `optimized`:
#   threads    starts threads, or is run by several: ThreadSanitizer looks at it, and AddressSanitizer if it lies in llmc/
#   addresses  AddressSanitizer looks at it, wherever it lies
#   gpu test   a test that runs on a GPU too, although its folder knows no device
#   fuzzed     reads files that somebody else may have written: libFuzzer looks for ones that break it

# ---- tests ---------------------------------------------------------------------------------------------------------
# A test with device code is a .cu file and runs on both devices; test/device/host/ is about the host device itself.
# The kernels' specifications serve check_card, too.
SPECIFICATIONS := $(wildcard test/kernels/specifications/*.cpp test/kernels/specifications/*.cu)
TESTS      := test/main.cpp $(wildcard test/*/*.cpp test/*/*.cu) $(SPECIFICATIONS)
HOST_TESTS := $(wildcard test/device/host/*.cpp test/device/host/*.cu)
RANK_TESTS := $(wildcard test/comm/ranks/*.cpp)
PROBE      := $(filter-out dev/probe/main.cpp,$(wildcard dev/probe/*.cpp dev/probe/*.cu))
# Folders that know no device: test_gpu leaves their tests to test_cpu. `make WITHOUT_DEVICE=` has them in both.
NO_DEVICE      := $(addprefix test/,base flags log plan run checkpoint data dev)
WITHOUT_DEVICE := $(filter-out $(call marked,gpu-test),$(wildcard $(NO_DEVICE:%=%/*.cpp)))
# The tests of a folder are a unit, too, without those that have a mark. Specifications are not: all of them use the same
# names.
TEST_UNITS := $(addprefix test/,base checkpoint comm comm/ranks data flags fp8 kernels linear log model optim plan run \
              shard train) dev/probe
MARKED     := $(foreach mark,$(MARKS),$(firstword $(subst :, ,$(mark))))
$(foreach folder,$(TEST_UNITS),$(eval unit_$(folder) := \
    $(filter-out $(MARKED) dev/probe/main.cpp,$(wildcard $(folder)/*.cpp))))
unit_test/device_kernels := $(filter-out $(MARKED),$(wildcard test/device/*.cu))
unit_dev/probe_kernels   := $(wildcard dev/probe/*.cu)
UNITS += $(if $(UNITS),$(TEST_UNITS) test/device_kernels dev/probe_kernels)
CUDA_TEST_OBJECTS := $(call cuda_objects,$(filter-out $(WITHOUT_DEVICE),$(TESTS)) $(if $(WITHOUT_DEVICE),,$(PROBE)))
CUDA_PROBE_OBJECTS := $(call cuda_objects,$(PROBE) dev/probe/main.cpp)
CUDA_RANK_OBJECTS  := $(call cuda_objects,$(RANK_TESTS))
# These tests take no longer at -O0. A file compiled so must share no inline function with code that computes: one copy
# serves the whole program.
$(foreach dir,$(NO_DEVICE) test/comm,$(SHARED_DIR)/$(dir)/%.o $(SHARED_DIR)/build/units/$(dir)%.o) \
$(SHARED_DIR)/test/main.cpp.o: LEVEL := -O0

# These programs run kernels on an emulator of GPU threads instead of the product's grid.
EMULATOR := $(wildcard dev/emulator/*.cpp)

# test_cpu emulates the kernels that have CPU loops, too, and compares them. -O1 compiles in half the time of -O3. The
# kernels trap (SIGILL) on undefined behaviour; `make SANITIZE=address UNCHECKED=` names the line. Some checks are left
# out: those that take as long to compile as all others together, and the check of alignment, because the virtual GPU
# checks every access of the code that a card would run.
TRAPS := -fsanitize=undefined -fno-sanitize=vptr,null,object-size,alignment,pointer-overflow \
         -fsanitize-undefined-trap-on-error
with_kernels_in = $(patsubst %,$1/with_kernels/%.o,$(call in_units,$(LAUNCHERS)))
TEST_LAUNCHERS  = $(call with_kernels_in,$(CPU_DIR))
$(CPU_DIR)/with_kernels/%.o $(CPU_DIR)/test/device/host/%.o: CXXFLAGS_CPU += -DLLMC_WITH_KERNELS
$(CPU_DIR)/with_kernels/%.o: LEVEL := -O1
$(CPU_DIR)/with_kernels/%.o: % Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_CPU) $(TRAPS) -x c++ -c $< -o $@

# ---- sanitizers ----------------------------------------------------------------------------------------------------
# A sanitizer's build reuses ordinary objects of files that it need not look at. AddressSanitizer leaves out tests, which
# only call llmc/, the upper folders, which read flags and write reports, and kernels. ThreadSanitizer looks at files
# that start threads or are run by several, and at their tests. Both look at all of a unit that has a file of theirs.
# `make UNCHECKED=` looks at everything, in a directory of its own.
PLAIN_DIR := $(CPU_DIR)
ifneq ($(SANITIZE),)
WHOLE     := $(if $(filter command,$(origin UNCHECKED)),-whole)
ALL       := $(LLMC) $(HOST_ONLY) $(EMULATOR) $(TESTS) $(HOST_TESTS) $(RANK_TESTS) $(PROBE)
CHECKED_address := $(filter-out $(UPPER:%=llmc/%/%) $(LAUNCHERS),$(filter llmc/%,$(ALL))) $(EMULATOR) $(HOST_TESTS) \
                   $(filter llmc/%,$(call marked,threads)) $(call marked,addresses)
CHECKED_thread  := llmc/comm/%.cpp llmc/device/%.cpp $(EMULATOR) $(wildcard test/comm/*.cpp) $(call marked,threads)
CHECKED   := $(filter $(CHECKED_$(SANITIZE)),$(ALL))
TOUCHED   := $(foreach unit,$(UNITS),$(if $(filter $(CHECKED),$(unit_$(unit))),$(unit)))
CHECKED   += $(foreach unit,$(TOUCHED),$(unit_$(unit)))
UNCHECKED := $(filter-out $(CHECKED),$(ALL))
CPU_DIR   := build/cpu-$(MARCH)-$(SANITIZE)$(WHOLE)$(SUFFIX)
LINK_FLAGS := -fsanitize=$(if $(filter thread,$(SANITIZE)),thread,address$(comma)undefined)
cpu_objects = $(patsubst %,$(CPU_DIR)/%.o,$(call in_units,$(filter-out $(UNCHECKED),$1))) \
              $(call objects_in,$(PLAIN_DIR),$(call in_units,$(filter $(UNCHECKED),$1)))
ifeq ($(WHOLE),)
TEST_LAUNCHERS = $(if $(filter thread,$(SANITIZE)),$(CPU_LAUNCHERS),$(call with_kernels_in,$(PLAIN_DIR)))
endif
# Line numbers for reports, relative to the checkout, so that ccache knows them in every clone. g++ takes its own
# AVX-512 headers for uninitialised.
CXXFLAGS_SANITIZE = -g1 -fdebug-prefix-map=$(CURDIR)=. -Wno-maybe-uninitialized
ifeq ($(SANITIZE),thread)
CXXFLAGS_SANITIZE += -fsanitize=thread -Wno-tsan
else
CXXFLAGS_SANITIZE += -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined \
                     -fno-sanitize=vptr,null,object-size$(if $(UNCHECKED),$(comma)pointer-overflow)
$(CPU_DIR)/%.cpp.o $(if $(UNCHECKED),$(addprefix $(CPU_DIR)/,llmc/%.cu.o build/units/%.cu.o)): \
    CXXFLAGS_SANITIZE += -fno-sanitize=alignment
endif
$(call optimized_in,$(CPU_DIR)) $(CPU_DIR)/%.cu.o: LEVEL := -O1
$(CPU_DIR)/%.cpp.o: CXXFLAGS_SANITIZE += $(DEFINES_CPU)
$(CPU_DIR)/with_kernels/%.o $(CPU_DIR)/test/device/host/%.o: CXXFLAGS_SANITIZE += -DLLMC_WITH_KERNELS
define compile_sanitized
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_HOST) $(LEVEL) $(CXXFLAGS_SANITIZE) $(if $(filter %.cu,$<),-x c++) -c $< -o $@
endef
$(CPU_DIR)/%.o: % Makefile
	$(compile_sanitized)
$(CPU_DIR)/with_kernels/%.o: % Makefile
	$(compile_sanitized)
endif

# ---- test programs -------------------------------------------------------------------------------------------------
.PHONY: check_card check_card_cpu test-cpu test-gpu test-ranks test-ranks-binary test-ranks-gpu kernels probe probe-cpu \
        kernel-times bench-cpu fuzz mutation soak dist gpu-build
CPU_PROGRAMS  += $(addprefix $(CPU_DIR)/,check_card_cpu test_cpu test_ranks probe_cpu bench_cpu bench_step)
EMULATING     := $(addprefix $(CPU_DIR)/,check_card_cpu test_cpu probe_cpu bench_cpu)
CUDA_PROGRAMS += $(addprefix $(CUDA_DIR)/,check_card test_gpu test_ranks probe)
$(EMULATING): $(call cpu_objects,$(EMULATOR))
$(CPU_DIR)/check_card_cpu: $(call cpu_objects,$(SPECIFICATIONS)) $(call shared,dev/check_card.cpp)
$(CPU_DIR)/test_cpu: $(TEST_LAUNCHERS) $(call cpu_objects,$(TESTS) $(HOST_TESTS) $(PROBE))
$(CPU_DIR)/test_ranks: $(call cpu_objects,$(RANK_TESTS))
$(CPU_DIR)/probe_cpu: $(call cpu_objects,$(PROBE)) $(call shared,dev/probe/main.cpp)
$(CPU_DIR)/bench_cpu: $(CPU_DIR)/dev/bench_cpu.cu.o
$(CPU_DIR)/bench_step: $(CPU_DIR)/dev/bench_step.cpp.o
CUDA_CHECK_OBJECTS := $(call cuda_objects,$(SPECIFICATIONS)) $(call shared,dev/check_card.cpp)
$(CUDA_DIR)/check_card: $(CUDA_CHECK_OBJECTS)
$(CUDA_DIR)/test_gpu: $(CUDA_TEST_OBJECTS)
$(CUDA_DIR)/test_ranks: $(CUDA_RANK_OBJECTS)
$(CUDA_DIR)/probe: $(CUDA_PROBE_OBJECTS)

check_card: $(CUDA_DIR)/check_card  ## tests all that a run uses on this card (README.md)
	@cmp -s $< $@ || cp -f $< $@
check_card_cpu: $(CPU_DIR)/check_card_cpu  ## the same on the host device
	@cmp -s $< $@ || cp -f $< $@
test-cpu: $(CPU_DIR)/test_cpu  ## the tests for the host device; SANITIZE=address or thread
test-gpu: $(CUDA_DIR)/test_gpu  ## the tests for a GPU
test-ranks: $(CPU_DIR)/test_ranks  ## several processes: collectives, launches, lost ranks (needs mpirun)
	TEST_RANKS=$(CPU_DIR)/test_ranks python3 test/end_to_end/test_ranks.py
test-ranks-binary: $(CPU_DIR)/test_ranks
test-ranks-gpu: $(CUDA_DIR)/test_ranks  ## the same on GPUs
kernels: $(filter %.cu.o,$(CUDA_OBJECTS))  ## only device code, for dev/check_kernels.py
probe: $(CUDA_DIR)/probe  ## asks a GPU for every matrix product (dev/gpu/README.md)
probe-cpu: $(CPU_DIR)/probe_cpu
kernel-times: $(CUDA_DIR)/libkernel_times.so  ## a library that measures a program's kernels
bench-cpu: $(CPU_DIR)/bench_cpu $(CPU_DIR)/bench_step  ## times of the host device, kernel by kernel
	$(CPU_DIR)/bench_cpu
	$(CPU_DIR)/bench_step
mutation:  ## drops every barrier and wait in the kernels in turn, and reports those that no test misses
	python3 dev/mutation.py
soak:  ## the tests that take hours
	./dev/soak.sh
gpu-build:  # for scripts: where the build for this machine's GPUs lies; an empty line where there are none
	@echo $(if $(FOUND_ARCHS),$(CUDA_DIR))
# The CUDA driver loads it into a program; it has times from CUPTI.
KERNEL_TIMES := $(addprefix dev/gpu/,kernel_times.cpp hold_multiprocessors.cu)
$(CUDA_DIR)/libkernel_times.so: $(KERNEL_TIMES) dev/gpu/hold_multiprocessors.h Makefile
	@mkdir -p $(@D)
	$(NVCC) -std=c++20 -O1 $(GENCODE) -Xcompiler -fPIC,-Wall,-Wextra -shared $(KERNEL_TIMES) -o $@ \
	    -L$(CUDA_HOME)/lib64 -L$(CUDA_HOME)/extras/CUPTI/lib64 -lcupti

include dev/virtual_gpu/build.mk  # make virtual, make test-virtual

# ---- fuzzing -------------------------------------------------------------------------------------------------------
# Clang compiles the readers of files with libFuzzer's marks. Everything else comes from the ordinary build.
FUZZ_SECONDS ?= 120
FUZZED := $(call marked,fuzzed)
FUZZED_OBJECTS := $(patsubst %,build/fuzz/%.o,test/fuzz/libfuzzer/main.cpp $(FUZZED))
fuzz: build/fuzz/fuzz  ## broken files of every kind, by libFuzzer (needs clang); FUZZ_SECONDS=120 for each
	for target in manifest state safetensors shard sidecar tokenizer choices run model; do \
	    build/fuzz/fuzz $$target build/fuzz/$$target -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 \
	        -artifact_prefix=build/fuzz/$$target- -print_final_stats=1 || exit 1; \
	done
build/fuzz/fuzz: $(FUZZED_OBJECTS) $(filter-out $(FUZZED:%=\%/%.o),$(CPU_OBJECTS) $(CPU_LAUNCHERS) $(CPU_GRID))
	rm -f $@.a && ar rcs $@.a $(filter-out build/fuzz/%,$^)
	clang++ -fsanitize=fuzzer,address,undefined $(FUZZED_OBJECTS) $@.a -o $@ $(subst -fopenmp,-lgomp,$(LIBS_CPU))
build/fuzz/%.o: %
	@mkdir -p $(@D)
	$(CCACHE) clang++ -std=c++20 -I. -MMD -MP -Wall -Wextra -DLLMC_CUDA=0 -g -O1 -fsanitize=fuzzer,address,undefined \
	    -fno-sanitize-recover=undefined -c $< -o $@

# ---- packages (dev/guide/packages.md) ------------------------------------------------------------------------------
# Programs, what users run with them, and pages with the files they link to, laid out as in a checkout.
PACKAGED := README.md LICENSE data dev/CHANGELOG.md dev/README.md dev/guide dev/notes dev/pictures \
            dev/virtual_gpu/README.md llmc/checkpoint/README.md llmc/data/choices.h llmc/plan/cards.cpp \
            $(addprefix scripts/,configs multi_node pretrain published report) $(wildcard scripts/*.py)
package = mkdir -p $1 && cp -R --parents --remove-destination $2 $(PACKAGED) $1 && \
          find $1 -name __pycache__ -prune -exec rm -r {} +
DIST_OPTIONS ?= GPU_ARCH=all USE_MPI=0 MARCH=x86-64-v3
VERSION := $(shell sed -n 's/^\#define LLMC_VERSION "\(.*\)"/\1/p' llmc/log/provenance.cpp)
DIST    := build/dist/train_gpt-$(VERSION)-linux-$(shell uname -m)
dist:  ## build/dist/train_gpt-VERSION-linux-x86_64.tar.gz: programs for all GPUs, without MPI
	$(MAKE) all $(DIST_OPTIONS)
	rm -rf $(DIST)
	$(call package,$(DIST),train_gpt_cpu $(if $(NVCC),train_gpt))
	tar -czf $(DIST).tar.gz -C build/dist $(notdir $(DIST))
	@ls -l $(DIST).tar.gz
-include $(shell find build/fuzz -name '*.d' 2>/dev/null)
