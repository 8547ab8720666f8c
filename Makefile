# train_gpt: `make help` lists the targets. Objects lie under build/<configuration>/, so that a changed option never links
# stale ones. The host build (train_gpt_cpu) needs no CUDA toolkit.

comma := ,
space := $() $()

# ---- options -------------------------------------------------------------------------------------------------------
PRECISION ?= AUTO      # default of --precision: AUTO, FP32 or BF16
SANITIZE  ?=           # host build: address (with undefined) or thread
USE_MPI   ?= $(if $(MPICXX),1,0)        # several processes: 1 where there is an mpicxx
USE_NCCL  ?= $(if $(NCCL_INCLUDE),1,0)  # several GPUs at full speed, CUDA build: 1 where there is an nccl.h
MARCH     ?= native    # host build: -march
PTX       ?= 0         # CUDA build: 1 keeps PTX as text in the objects, which the virtual GPU runs (dev/virtual_gpu/)

CUDA_HOME ?= $(firstword $(wildcard $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null)) /usr/local/cuda))
NVCC      := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc))
# Architectures to build for: those of the GPUs found here, else sm_90a. GPU_ARCH takes one, several (sm_80,sm_90a) or all;
# 90a is sm_90a. Code for 8.0 runs on 8.6 and 8.7 too, that for 10.0 on 10.3, and that for 12.0 on 12.1. nvidia-smi prints
# its failures where its answers go: a line is an answer only if it is such a number.
GPU_ARCHS := sm_80 sm_89 sm_90a sm_100 sm_120
FOUND_ARCHS := $(sort $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -n \
    -e 's/^8\.9$$/sm_89/p' -e 's/^8\.[0-9]$$/sm_80/p' -e 's/^9\.0$$/sm_90a/p' -e 's/^10\.[0-9]$$/sm_100/p' \
    -e 's/^12\.[0-9]$$/sm_120/p'))
GPU_ARCH  ?= $(if $(FOUND_ARCHS),$(subst $(space),$(comma),$(FOUND_ARCHS)),sm_90a)
MPICXX    ?= $(shell command -v mpicxx 2>/dev/null)
# The headers alone: the library is looked for when the program runs. .venv: scripts/setup.sh puts them there.
NCCL_HOME ?=
NCCL_INCLUDE := $(patsubst %/nccl.h,%,$(firstword $(wildcard $(addsuffix /nccl.h,$(NCCL_HOME)/include \
    $(CUDA_HOME)/include /usr/include /usr/local/include .venv/lib/python3*/site-packages/nvidia/nccl/include))))

# What was compiled before is not compiled again, in another clone neither: CCACHE= turns that off.
CCACHE    ?= $(shell command -v ccache 2>/dev/null)

# Lines with a comment at their end carry its spaces.
PRECISION := $(strip $(PRECISION))
SANITIZE  := $(strip $(SANITIZE))
MARCH     := $(strip $(MARCH))
USE_MPI   := $(strip $(USE_MPI))
USE_NCCL  := $(strip $(USE_NCCL))
PTX       := $(strip $(PTX))

ifneq ($(filter-out AUTO FP32 BF16,$(PRECISION)),)
$(error PRECISION=$(PRECISION): expected AUTO, FP32 or BF16)
endif
ifneq ($(filter-out address thread,$(SANITIZE)),)
$(error SANITIZE=$(SANITIZE): expected address or thread)
endif
ARCH_NAMES := $(sort $(patsubst sm_all,all,$(addprefix sm_,$(patsubst sm_%,%,$(subst $(comma), ,$(GPU_ARCH))))))
ifneq ($(if $(ARCH_NAMES),$(filter-out all $(GPU_ARCHS),$(ARCH_NAMES)),none),)
$(error GPU_ARCH=$(GPU_ARCH): expected all, or some of $(GPU_ARCHS) with commas between them (sm_80 is for 8.6 too))
endif
# With `all` goes PTX, from which the driver of a later GPU makes code. It is that of the newest; PTX of an architecture
# with a letter (sm_90a, sm_120f) serves its own generation alone.
ARCHS := $(if $(filter all,$(ARCH_NAMES)),$(GPU_ARCHS) compute_120,$(ARCH_NAMES))
ifneq ($(filter-out 0 1,$(USE_MPI) $(USE_NCCL) $(PTX)),)
$(error USE_MPI=$(USE_MPI) USE_NCCL=$(USE_NCCL) PTX=$(PTX): expected 0 or 1)
endif
ifeq ($(USE_NCCL)$(NCCL_INCLUDE)$(if $(NVCC),,-),1)
$(error USE_NCCL=1 needs nccl.h in CUDA_HOME, /usr, /usr/local or NCCL_HOME: install libnccl-dev, or run scripts/setup.sh)
endif
ifeq ($(USE_MPI)$(MPICXX),1)
$(error USE_MPI=1 needs mpicxx in PATH: install Open MPI (libopenmpi-dev, openmpi-bin) or MPICH; scripts/setup.sh does)
endif

# oneDNN makes BF16 and FP8 matmuls on CPUs with AVX512-BF16 or AMX.
USE_ONEDNN ?= $(if $(wildcard /usr/include/dnnl.hpp),1,0)
ifeq ($(USE_ONEDNN)$(filter train_gpt_cpu,$(MAKECMDGOALS)),0train_gpt_cpu)
$(info note: without oneDNN (libdnnl-dev; scripts/setup.sh installs it) BF16 and FP8 matmuls are slower on CPUs with AVX512-BF16 or AMX)
endif

# ---- configurations ------------------------------------------------------------------------------------------------
SUFFIX   := $(if $(filter-out AUTO,$(PRECISION)),-$(PRECISION))$(if $(filter 0,$(USE_MPI)),-nompi)$(if $(filter command,$(origin USE_ONEDNN)),-onednn$(USE_ONEDNN))
PLAIN_DIR := build/cpu-$(MARCH)$(SUFFIX)
WHOLE    := $(if $(filter command,$(origin UNCHECKED)),-whole)
CPU_DIR  := build/cpu-$(MARCH)$(if $(SANITIZE),-$(SANITIZE)$(WHOLE))$(SUFFIX)
CUDA_DIR := build/cuda-$(subst $(space),-,$(ARCH_NAMES))$(SUFFIX)$(if $(filter 0,$(USE_NCCL)),-nonccl)$(if $(filter 1,$(PTX)),-ptx)
# What is the same for both devices.
SHARED_DIR := build/shared$(if $(filter-out AUTO,$(PRECISION)),-$(PRECISION))

GIT_VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
# -march=native means another processor on another machine, which ccache would not see.
ifneq ($(CCACHE),)
export CCACHE_NAMESPACE := $(shell $(CXX) -march=$(MARCH) -Q --help=target 2>/dev/null | md5sum | cut -c -16)
endif
DEFINES  := $(if $(filter FP32,$(PRECISION)),-DLLMC_DEFAULT_PRECISION='"fp32"') \
            $(if $(filter BF16,$(PRECISION)),-DLLMC_DEFAULT_PRECISION='"bf16"')
# What the MPI compiler would say, without its C++ bindings. One file includes mpi.h.
MPI_FLAGS := $(if $(filter 1,$(USE_MPI)),$(shell $(MPICXX) -show 2>/dev/null))
MPI_COMPILE := $(if $(filter 1,$(USE_MPI)),-DLLMC_USE_MPI=1) $(filter -I% -D%,$(MPI_FLAGS))
MPI_LIBS  := $(filter-out -lmpi_cxx -lmpicxx -lmpichcxx,$(filter -L% -l% -Wl$(comma)%,$(MPI_FLAGS)))
NCCL_LIB  := $(abspath $(filter .venv/% $(NCCL_HOME)/%,$(NCCL_INCLUDE:include=lib)))
NCCL_COMPILE := $(if $(filter 1,$(USE_NCCL)),-DLLMC_USE_NCCL=1 -I$(NCCL_INCLUDE))
WARNINGS := -Wall -Wextra -Wno-restrict  # -Wrestrict: false alarms of g++ 12 on std::string
# No -ffast-math: it would break NaN poison and the rounding tricks. -fno-math-errno lets sqrt vectorise. No contractions but
# those that are spelled fma(): which others g++ makes depends on the loop and on the processor that it tunes for, so that
# instantiations of one kernel would have different bits.
COMMON   := -std=c++20 -I. $(DEFINES)
CXXFLAGS_HOST := $(COMMON) $(WARNINGS) -fopenmp -fno-math-errno -ffp-contract=off -march=$(MARCH) -MMD -MP -DLLMC_CUDA=0
# g++ would peel the kernels' loops over the 8 elements of a vector access completely before it vectorises them: with a
# lower limit they become vector instructions, and kernels up to twice as fast.
CXXFLAGS_PLAIN = $(CXXFLAGS_HOST) $(LEVEL) $(if $(findstring clang,$(CXX)),,--param max-completely-peel-times=7)
# With a sanitizer: line numbers for its reports, relative to the checkout, so that ccache knows them in every clone. And g++
# then takes its own AVX-512 headers for uninitialised.
SANITIZED := -g1 -fdebug-prefix-map=$(CURDIR)=. -Wno-maybe-uninitialized
ifeq ($(SANITIZE),address)
# UNCHECKED= looks at everything. Else kernels have UBSan alone, and device code is without its check of alignment: what they
# touch, and how it is aligned, the virtual GPU holds against its allocations to the byte, in the very code that a card runs.
# And UBSan is without the checks that take as long to compile as all others together, some of which see what
# AddressSanitizer sees.
SANITIZERS := address,undefined
CXXFLAGS_CPU = $(CXXFLAGS_HOST) $(LEVEL) $(SANITIZED) -fno-omit-frame-pointer -fsanitize=$(SANITIZERS) -fno-sanitize-recover=undefined \
                -fno-sanitize=vptr,null,object-size$(if $(UNCHECKED),$(comma)pointer-overflow)
$(CPU_DIR)/%.cpp.o: CXXFLAGS_CPU += -fno-sanitize=alignment
$(CPU_DIR)/llmc/%.cu.o: CXXFLAGS_CPU += $(if $(UNCHECKED),-fno-sanitize=alignment)
$(CPU_DIR)/llmc/kernels/%.cu.o: SANITIZERS = $(if $(UNCHECKED),,address$(comma))undefined
else ifeq ($(SANITIZE),thread)
CXXFLAGS_CPU = $(CXXFLAGS_HOST) $(LEVEL) $(SANITIZED) -fsanitize=thread -Wno-tsan
else
CXXFLAGS_CPU = $(CXXFLAGS_PLAIN)
endif
# -Werror=undef: a file that asks for the device is not the same for all.
CXXFLAGS_SHARED = $(COMMON) $(WARNINGS) -Werror=undef $(LEVEL) -fopenmp -MMD -MP
CXXFLAGS_CUDA = $(COMMON) $(WARNINGS) $(LEVEL) -fopenmp -MMD -MP -DLLMC_CUDA=1 -I$(CUDA_HOME)/include
# C++ around the kernels runs once a launch or less, and compiles in three fifths of the time at -Og. What goes through numbers
# by itself is a kernel, or stands here.
LEVEL := -Og
OBJECT_DIRS := $(PLAIN_DIR) $(CUDA_DIR) $(SHARED_DIR)
in_object_dirs = $(foreach d,$(OBJECT_DIRS),$(addprefix $d/,$1))
COMPUTES := check/random_values.cpp check/reference_%.cpp checkpoint/manifest.cpp checkpoint/state_file.cpp comm/exchange_host.cpp \
            data/shards.cpp device/host/%.cpp kernels/host/%.cpp linear/matmul_host.cpp linear/onednn_host.cpp model/model_table.cpp model/sampler.cpp log/fingerprint.cpp
$(PLAIN_DIR)/llmc/%.cu.o $(PLAIN_DIR)/dev/bench_cpu.cu.o $(call in_object_dirs,$(patsubst %,llmc/%.o,$(COMPUTES))): LEVEL := -O3
ifneq ($(SANITIZE),)  # the sanitizer's own objects
$(CPU_DIR)/%.cu.o $(patsubst %,$(CPU_DIR)/llmc/%.o,$(COMPUTES)): LEVEL := -O1
endif
# Tests run as long so, but for formats.cu, which goes through all numbers of a format. At -O0 a file's copies of inline
# functions may become those of the whole program: only for files that share none with what computes.
$(call in_object_dirs,$(addprefix test/,base/%.o flags/%.o log/%.o plan/%.o run/%.o checkpoint/%.o comm/%.o data/%.o dev/%.o main.cpp.o)): LEVEL := -O0
$(PLAIN_DIR)/test/device/formats.cu.o: LEVEL := -O3
# Not -gencode: ccache would take it for -g, and what one clone has compiled for another program in the next.
ifeq ($(PTX),1)
GENCODE := $(foreach arch,$(ARCHS),--generate-code=arch=$(arch:sm_%=compute_%)$(comma)code=[$(arch)$(comma)$(arch:sm_%=compute_%)]) --compress-mode=none
else
GENCODE := $(foreach arch,$(ARCHS),--generate-code=arch=$(arch:sm_%=compute_%)$(comma)code=$(arch))
endif
# -O1 is for the host: device code has -O3 in any case.
NVCCFLAGS := $(COMMON) -O1 -DLLMC_CUDA=1 $(GENCODE) -Xptxas -v \
             --expt-relaxed-constexpr -Xcompiler -fopenmp,-Wall

# One thread pool in the process: the OpenMP build of OpenBLAS. Its pthread build would fight with libgomp for the cores.
BLAS_DIR := $(firstword $(wildcard /usr/lib/*/openblas-openmp))
LIBS_CPU := $(if $(filter 1,$(USE_ONEDNN)),-ldnnl )$(if $(BLAS_DIR),-L$(BLAS_DIR) -Wl$(comma)-rpath$(comma)$(BLAS_DIR)) -lopenblas -fopenmp -lpthread $(MPI_LIBS)
LIBS_CUDA := -L$(CUDA_HOME)/lib64 -Xlinker -rpath -Xlinker $(CUDA_HOME)/lib64 -lcublasLt -lgomp -lpthread -ldl $(addprefix -Xlinker -rpath -Xlinker ,$(NCCL_LIB)) $(subst -Wl$(comma),-Xlinker ,$(MPI_LIBS))

# ---- sources -------------------------------------------------------------------------------------------------------
LLMC      := $(wildcard llmc/*/*.cpp llmc/*/*.cu) build/git_version.cpp
HOST_ONLY := $(wildcard llmc/device/host/*.cpp llmc/kernels/host/*.cpp)
# A test with device code is a .cu file and runs on both devices; test/device/host/ is about the host device itself.
TESTS     := test/main.cpp $(filter-out test/virtual_gpu/%,$(wildcard test/*/*.cpp test/*/*.cu))
TESTS_HOST_ONLY := $(wildcard test/device/host/*.cpp test/device/host/*.cu)
# Flags, files and reports know no device: test_gpu leaves their tests to test_cpu. WITHOUT_DEVICE= has them in both.
WITHOUT_DEVICE := $(filter-out $(addprefix test/log/,fingerprint.cpp profile.cpp versions.cpp), \
                  $(wildcard $(addsuffix /*.cpp,test/base test/flags test/log test/plan test/run test/checkpoint test/data test/dev)))
# C++ that is the same for both devices is compiled once for them (SHARED): all but what asks for the device or an option of
# the build (PER_BUILD), and loops that want this machine's vectors. What asks for them does not compile in SHARED.
PER_BUILD := $(addprefix llmc/,linear/matmul_cuda.cpp linear/matmul_host.cpp linear/onednn_host.cpp linear/product_support.cpp model/model_table.cpp comm/connect.cpp \
             comm/exchange_host.cpp comm/exchange_staged.cpp comm/nccl_backend.cpp comm/transport_mpi.cpp \
             commands/plan.cpp run/ranks.cpp log/versions.cpp) dev/probe/lt.cpp dev/probe/reference.cpp \
             $(addprefix test/,check/known_products.cpp comm/backend.cpp comm/ranks/training.cpp \
             comm/ranks/verification.cpp kernels/attention_fp8.cpp kernels/layernorm_backward_fp8.cpp \
             kernels/layernorm_fp8.cpp kernels/rmsnorm_fp8.cpp model/gpt2_fp8_blocks.cpp model/gpt2_fp8_reference.cpp \
             model/traffic.cpp log/versions.cpp train/verification.cpp)
SHARED := train_gpt.cu test/main.cpp dev/gradients.cpp $(filter-out $(PER_BUILD) test/virtual_gpu/%, \
          $(wildcard llmc/*/*.cpp dev/probe/*.cpp test/*/*.cpp test/comm/ranks/*.cpp))

# A sanitizer's build takes from the ordinary one what it need not look at: test code that does no more than call llmc/,
# flags and reports, the card check, the probe. ThreadSanitizer is there for the program's threads (the loader's, the saver's,
# the watchdog's) and for the host device: it also leaves out what one thread does, and all kernels: the virtual GPU looks for
# their races. UNCHECKED= looks at everything.
WITH_THREADS := $(wildcard test/comm/*.cpp) test/device/host/% $(addprefix test/,comm/ranks/collectives.cpp \
                comm/ranks/scenario.cpp checkpoint/saver.cpp device/async_copy.cu device/launch.cu device/warp.cu \
                run/signals.cpp)
CALLERS := $(filter-out $(WITH_THREADS),$(TESTS) $(wildcard test/comm/ranks/*.cpp)) \
           $(filter-out llmc/flags/options.cpp llmc/run/signals.cpp, \
           $(wildcard $(addsuffix /*.cpp,llmc/flags llmc/log llmc/plan llmc/run llmc/commands llmc/check dev/probe) llmc/check/*.cu dev/probe/*.cu))
ONE_THREAD := $(filter-out $(addprefix llmc/,checkpoint/saver.cpp checkpoint/state_file.cpp base/files.cpp \
              data/loader.cpp data/shards.cpp), llmc/comm/launch.cpp llmc/flags/options.cpp \
              $(wildcard $(foreach d,base checkpoint data fp8 kernels linear model optim shard,llmc/$d/*.cpp llmc/$d/*.cu)))
UNCHECKED := $(if $(SANITIZE),$(CALLERS) $(if $(filter thread,$(SANITIZE)),$(ONE_THREAD)))
objects_in = $(patsubst %,$1/%.o,$(filter-out $(SHARED),$2)) $(patsubst %,$(SHARED_DIR)/%.o,$(filter $(SHARED),$2))
ifeq ($(SANITIZE),)
cpu_objects = $(call objects_in,$(CPU_DIR),$1)
else
cpu_objects = $(patsubst %,$(CPU_DIR)/%.o,$(filter-out $(UNCHECKED),$1)) $(call objects_in,$(PLAIN_DIR),$(filter $(UNCHECKED),$1))
endif

CPU_OBJECTS       := $(call cpu_objects,$(LLMC) $(HOST_ONLY))
CPU_TEST_OBJECTS  := $(call cpu_objects,$(TESTS) $(TESTS_HOST_ONLY))
CUDA_OBJECTS      := $(call objects_in,$(CUDA_DIR),$(LLMC))
CUDA_TEST_OBJECTS := $(call objects_in,$(CUDA_DIR),$(filter-out $(WITHOUT_DEVICE),$(TESTS)))
# What a GPU can do, product by product (dev/gpu/README.md). Its parts are tested like those of llmc/.
PROBE_MAIN  := dev/probe/main.cpp
PROBE_PARTS := $(filter-out $(PROBE_MAIN),$(wildcard dev/probe/*.cpp dev/probe/*.cu))
CPU_PROBE_OBJECTS  := $(call cpu_objects,$(PROBE_PARTS))
CUDA_PROBE_OBJECTS := $(call objects_in,$(CUDA_DIR),$(PROBE_PARTS))
RANK_TESTS := $(wildcard test/comm/ranks/*.cpp)
CPU_RANK_TEST_OBJECTS  := $(call cpu_objects,$(RANK_TESTS))
CUDA_RANK_TEST_OBJECTS := $(call objects_in,$(CUDA_DIR),$(RANK_TESTS))
# Files with a main().
CPU_MAIN  := $(call cpu_objects,train_gpt.cu)
CUDA_MAIN := $(SHARED_DIR)/train_gpt.cu.o
PROBE_MAIN_OBJECT := $(SHARED_DIR)/$(PROBE_MAIN).o
GRADIENTS_MAIN := $(SHARED_DIR)/dev/gradients.cpp.o

# The virtual GPU (dev/virtual_gpu/README.md): programs of CUDA objects that keep their PTX, linked with it.
VIRTUAL_DIR := build/virtual
VIRTUAL_OUT := $(VIRTUAL_DIR)$(if $(filter-out sm_90a,$(ARCH_NAMES)),-$(subst $(space),-,$(ARCH_NAMES)))  # one for each architecture
VIRTUAL_OUT := $(strip $(VIRTUAL_OUT))
VIRTUAL_GPU := $(wildcard dev/virtual_gpu/*.cpp dev/virtual_gpu/arithmetic/*.cpp dev/virtual_gpu/ptx/*.cpp dev/virtual_gpu/cuda/*.cpp \
               dev/virtual_gpu/cublaslt/*.cpp)
VIRTUAL_NCCL := $(wildcard dev/virtual_gpu/nccl/*.cpp)
VIRTUAL_TESTS := $(wildcard test/virtual_gpu/*.cpp)
virtual_objects = $(patsubst %,$(VIRTUAL_DIR)/%.o,$1)

# ---- targets -------------------------------------------------------------------------------------------------------
.PHONY: all help train_gpt train_gpt_cpu test-cpu test-gpu kernels probe probe-cpu gradients gradients-cpu kernel-times test-ranks test-ranks-binary test-ranks-gpu test soak fuzz mutation bench-cpu gpu-build virtual test-virtual predict install uninstall dist clean FORCE
.DELETE_ON_ERROR:

all: train_gpt_cpu $(if $(NVCC),train_gpt)
ifeq ($(NVCC),)
	@echo "nvcc not found (PATH, CUDA_HOME, /usr/local/cuda): the CUDA build is skipped"
endif

help:
	@echo "make                 train_gpt (needs nvcc) and train_gpt_cpu"
	@echo "make train_gpt       the CUDA program; GPU_ARCH=$(GPU_ARCH)"
	@echo "make train_gpt_cpu   the same program on the host device; needs no CUDA toolkit"
	@echo "make test            everything that needs no GPU (scripts/test.sh); make soak: what takes long"
	@echo "make test-cpu        the test binary for the host device; SANITIZE=address or thread"
	@echo "make test-gpu        the test binary for a GPU; make test-ranks-gpu: that of several processes"
	@echo "make kernels         the device code alone, for dev/check_kernels.py"
	@echo "make test-ranks      several processes: collectives, launches, lost ranks (needs mpirun)"
	@echo "make probe           asks a GPU for every matrix product (dev/gpu/README.md); make probe-cpu: on the host device"
	@echo "make gradients       writes a micro-batch's gradients for comparing devices; make gradients-cpu; make kernel-times"
	@echo "make virtual         the CUDA programs on the virtual GPU, in build/virtual/ (dev/virtual_gpu/README.md)"
	@echo "make test-virtual    the virtual GPU's own tests"
	@echo "make predict         predicted times of kernels and steps (dev/virtual_gpu/PREDICTIONS.md)"
	@echo "make fuzz            broken files of every kind, by libFuzzer (needs clang); FUZZ_SECONDS=$(FUZZ_SECONDS) each"
	@echo "make mutation        drops every barrier and wait in the kernels in turn and reports which losses go unseen"
	@echo "make bench-cpu       what the host device costs, kernel by kernel"
	@echo "make install         what is built, into PREFIX=$(PREFIX) (and DESTDIR); make uninstall"
	@echo "make dist            build/dist/$(DIST).tar.gz: programs for all GPUs, without MPI (dev/guide/packages.md)"
	@echo "make clean"
	@echo "Options: PRECISION=AUTO|FP32|BF16  GPU_ARCH=sm_80|sm_89|sm_90a|sm_100|sm_120|all  MARCH=native  USE_MPI=0|1  USE_NCCL=0|1  USE_ONEDNN=0|1"

train_gpt: $(CUDA_DIR)/train_gpt
	@cp -f $< $@
train_gpt_cpu: $(CPU_DIR)/train_gpt_cpu
	@cp -f $< $@
test-cpu: $(CPU_DIR)/test_cpu
test-gpu: $(CUDA_DIR)/test_gpu
kernels: $(filter %.cu.o,$(CUDA_OBJECTS))
probe: $(CUDA_DIR)/probe
probe-cpu: $(CPU_DIR)/probe_cpu
gradients: $(CUDA_DIR)/gradients
gradients-cpu: $(CPU_DIR)/gradients_cpu
kernel-times: $(CUDA_DIR)/libkernel_times.so
test-ranks-binary: $(CPU_DIR)/test_ranks
test-ranks-gpu: $(CUDA_DIR)/test_ranks
test-virtual: $(VIRTUAL_DIR)/test_virtual_gpu
# The CUDA programs on the virtual GPU. Their objects are made by a make of its own, which keeps the PTX.
VIRTUAL_PROGRAMS := train_gpt test_gpu test_ranks probe gradients
ifeq ($(PTX),1)
virtual: $(addprefix $(VIRTUAL_OUT)/,$(VIRTUAL_PROGRAMS) libnccl.so.2)
else
virtual:
	$(MAKE) virtual PTX=1
endif
predict: virtual
	python3 dev/virtual_gpu/predict.py --kernels
test-ranks: $(CPU_DIR)/test_ranks
	TEST_RANKS=$(CPU_DIR)/test_ranks python3 test/end_to_end/test_ranks.py
test:
	./scripts/test.sh
soak:
	./dev/soak.sh
# Each target for FUZZ_SECONDS; what libFuzzer has found of each lies in build/fuzz/.
FUZZ_SECONDS ?= 120
fuzz: build/fuzz/fuzz
	for target in manifest state safetensors shard sidecar tokenizer choices run model; do \
	    build/fuzz/fuzz $$target build/fuzz/$$target -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 \
	        -artifact_prefix=build/fuzz/$$target- -print_final_stats=1 || exit 1; \
	done
mutation:
	python3 dev/mutation.py
bench-cpu: $(CPU_DIR)/bench_cpu $(CPU_DIR)/bench_step
	$(CPU_DIR)/bench_cpu
	$(CPU_DIR)/bench_step

# Clang compiles the readers, with libFuzzer's marks; what they call beside comes from the ordinary build.
FUZZED := test/fuzz/targets.cpp $(addprefix llmc/,base/files.cpp data/choices.cpp data/shards.cpp data/tokenizer.cpp base/input_file.cpp base/json.cpp train/state.cpp \
          $(patsubst %,model/%.cpp,config gpt2_config llama_config model_fields model_file) \
          $(patsubst %,flags/%.cpp,depth flags options resolve)) \
          $(patsubst %,llmc/checkpoint/%.cpp,safetensors manifest state_file checkpoint_reader checkpoint_directory)
build/fuzz/%.o: %
	@mkdir -p $(@D)
	$(CCACHE) clang++ $(COMMON) -MMD -MP -Wall -Wextra -DLLMC_CUDA=0 -g -O1 -fsanitize=fuzzer,address,undefined \
	    -fno-sanitize-recover=undefined -c $< -o $@
FUZZED_OBJECTS := $(patsubst %,build/fuzz/%.o,test/fuzz/libfuzzer/main.cpp $(FUZZED))
build/fuzz/fuzz: $(FUZZED_OBJECTS) $(filter-out $(patsubst %,\%/%.o,$(FUZZED)),$(CPU_OBJECTS))
	rm -f $@.a && ar rcs $@.a $(filter-out build/fuzz/%,$^)
	clang++ -fsanitize=fuzzer,address,undefined $(FUZZED_OBJECTS) $@.a -o $@ $(subst -fopenmp,-lgomp,$(LIBS_CPU))

$(CPU_DIR)/train_gpt_cpu: $(CPU_OBJECTS) $(CPU_MAIN)
	$(CXX) $(CXXFLAGS_CPU) $^ -o $@ $(LIBS_CPU)
$(CPU_DIR)/test_cpu: $(CPU_OBJECTS) $(CPU_TEST_OBJECTS) $(CPU_PROBE_OBJECTS)
	$(CXX) $(CXXFLAGS_CPU) $^ -o $@ $(LIBS_CPU)
# Several processes of this one test each other: test/comm/ranks/.
$(CPU_DIR)/test_ranks: $(CPU_OBJECTS) $(CPU_RANK_TEST_OBJECTS)
	$(CXX) $(CXXFLAGS_CPU) $^ -o $@ $(LIBS_CPU)
$(CUDA_DIR)/test_ranks: $(CUDA_OBJECTS) $(CUDA_RANK_TEST_OBJECTS)
	$(NVCC) $(filter %.o,$^) -o $@ $(LIBS_CUDA)
$(CPU_DIR)/bench_cpu: $(CPU_DIR)/dev/bench_cpu.cu.o
$(CPU_DIR)/bench_step: $(CPU_DIR)/dev/bench_step.cpp.o
$(CPU_DIR)/bench_cpu $(CPU_DIR)/bench_step: $(CPU_OBJECTS)
	$(CXX) $(CXXFLAGS_CPU) $^ -o $@ $(LIBS_CPU)
$(CUDA_DIR)/train_gpt: $(CUDA_OBJECTS) $(CUDA_MAIN)
	$(NVCC) $(filter %.o,$^) -o $@ $(LIBS_CUDA)
$(CUDA_DIR)/test_gpu: $(CUDA_OBJECTS) $(CUDA_TEST_OBJECTS) $(if $(WITHOUT_DEVICE),,$(CUDA_PROBE_OBJECTS))
	$(NVCC) $(filter %.o,$^) -o $@ $(LIBS_CUDA)
$(CPU_DIR)/probe_cpu: $(CPU_OBJECTS) $(CPU_PROBE_OBJECTS) $(PROBE_MAIN_OBJECT)
	$(CXX) $(CXXFLAGS_CPU) $^ -o $@ $(LIBS_CPU)
$(CUDA_DIR)/probe: $(CUDA_OBJECTS) $(CUDA_PROBE_OBJECTS) $(PROBE_MAIN_OBJECT)
	$(NVCC) $(filter %.o,$^) -o $@ $(LIBS_CUDA)

# What computes wants the vectors of this machine; contractions would not be the instructions that are played.
CXXFLAGS_VIRTUAL := -std=c++20 -I. $(WARNINGS) -O3 -march=$(MARCH) -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=off \
                    -fPIC -MMD -MP -I$(CUDA_HOME)/include $(addprefix -I,$(NCCL_INCLUDE))
$(VIRTUAL_DIR)/test/%.o: CXXFLAGS_VIRTUAL := $(subst -O3,-O1,$(CXXFLAGS_VIRTUAL))
$(VIRTUAL_DIR)/%.cpp.o: %.cpp Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_VIRTUAL) -c $< -o $@
$(VIRTUAL_OUT)/libnccl.so.2: $(call virtual_objects,$(VIRTUAL_NCCL))
	@mkdir -p $(@D)
	$(CXX) -shared $^ -o $@ -lrt -lpthread
$(VIRTUAL_DIR)/test_virtual_gpu: $(call virtual_objects,$(VIRTUAL_TESTS) $(VIRTUAL_GPU) $(VIRTUAL_NCCL))
	$(CXX) -rdynamic $^ -o $@ $(LIBS_CPU) -lrt -ldl
# -rdynamic, $$ORIGIN: libnccl.so.2 is loaded from beside the program, and calls it.
link_virtual = $(CXX) -rdynamic -Wl,-rpath,'$$ORIGIN' $(filter %.o,$^) -o $@ $(LIBS_CPU) -ldl
VIRTUAL_OBJECTS := $(call virtual_objects,$(VIRTUAL_GPU)) $(CUDA_OBJECTS)
$(VIRTUAL_OUT)/train_gpt: $(VIRTUAL_OBJECTS) $(CUDA_MAIN) $(VIRTUAL_OUT)/libnccl.so.2
	$(link_virtual)
$(VIRTUAL_OUT)/test_gpu: $(VIRTUAL_OBJECTS) $(CUDA_TEST_OBJECTS) $(if $(WITHOUT_DEVICE),,$(CUDA_PROBE_OBJECTS)) $(VIRTUAL_OUT)/libnccl.so.2
	$(link_virtual)
$(VIRTUAL_OUT)/test_ranks: $(VIRTUAL_OBJECTS) $(CUDA_RANK_TEST_OBJECTS) $(VIRTUAL_OUT)/libnccl.so.2
	$(link_virtual)
$(VIRTUAL_OUT)/probe: $(VIRTUAL_OBJECTS) $(CUDA_PROBE_OBJECTS) $(PROBE_MAIN_OBJECT)
	$(link_virtual)
$(VIRTUAL_OUT)/gradients: $(VIRTUAL_OBJECTS) $(GRADIENTS_MAIN)
	$(link_virtual)

$(CPU_DIR)/gradients_cpu: $(CPU_OBJECTS) $(GRADIENTS_MAIN)
	$(CXX) $(CXXFLAGS_CPU) $^ -o $@ $(LIBS_CPU)
$(CUDA_DIR)/gradients: $(CUDA_OBJECTS) $(GRADIENTS_MAIN)
	$(NVCC) $(filter %.o,$^) -o $@ $(LIBS_CUDA)
# A library that the CUDA driver loads into a program: times of its kernels, from CUPTI.
$(CUDA_DIR)/libkernel_times.so: dev/gpu/kernel_times.cpp Makefile
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS_CUDA) -shared -fPIC $< -o $@ -L$(CUDA_HOME)/lib64 -L$(CUDA_HOME)/extras/CUPTI/lib64 -lcupti

# What run.json and --version call "git". Rewritten only when it changes, so that nothing is compiled for it otherwise.
build/git_version.cpp: FORCE
	@mkdir -p $(@D)
	@echo 'namespace llmc { extern const char kGitVersion[]; const char kGitVersion[] = "$(GIT_VERSION)"; }' > $@.$$PPID
	@if cmp -s $@.$$PPID $@; then rm $@.$$PPID; else mv $@.$$PPID $@; fi
FORCE:

$(CPU_DIR)/llmc/comm/transport_mpi.cpp.o: CXXFLAGS_CPU += $(MPI_COMPILE)
$(CPU_DIR)/llmc/linear/onednn_host.cpp.o $(PLAIN_DIR)/llmc/linear/onednn_host.cpp.o: CXXFLAGS_HOST += $(if $(filter 1,$(USE_ONEDNN)),-DLLMC_USE_ONEDNN=1)
$(CUDA_DIR)/llmc/comm/transport_mpi.cpp.o: CXXFLAGS_CUDA += $(MPI_COMPILE)
$(CUDA_DIR)/llmc/comm/nccl_backend.cpp.o: CXXFLAGS_CUDA += $(NCCL_COMPILE)
$(CUDA_DIR)/llmc/device/runtime.cu.o: NVCCFLAGS += -DLLMC_GPU_ARCHS='"$(ARCHS)"'
$(CUDA_DIR)/llmc/log/versions.cpp.o: CXXFLAGS_CUDA += -DLLMC_BUILT_FOR='"$(ARCHS)"'
$(PLAIN_DIR)/llmc/log/versions.cpp.o: LEVEL += -DLLMC_BUILT_FOR='"$(MARCH)"'
$(CPU_DIR)/%.cpp.o: %.cpp Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_CPU) -c $< -o $@
$(SHARED_DIR)/%.cpp.o: %.cpp Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_SHARED) -c $< -o $@
$(SHARED_DIR)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_SHARED) -x c++ -c $< -o $@
$(patsubst %,$(PLAIN_DIR)/%.o,$(filter-out $(SHARED),$(UNCHECKED))): $(PLAIN_DIR)/%.o: % Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_PLAIN) -x c++ -c $< -o $@
$(CPU_DIR)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_CPU) -x c++ -c $< -o $@
$(CUDA_DIR)/%.cpp.o: %.cpp Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_CUDA) -c $< -o $@
# ptxas reports registers and spills into a file beside the object.
$(CUDA_DIR)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	@echo $(NVCC) ... -c $<
	@$(CCACHE) $(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@ 2> $@.ptxas || { cat $@.ptxas >&2; exit 1; }
	@grep -E "warning|error" $@.ptxas || true

# ---- packages (dev/guide/packages.md) --------------------------------------------------------------------------------------
# The programs that there are, and what users run beside them, as they lie here.
PREFIX       ?= /usr/local
DIST_OPTIONS ?= GPU_ARCH=all USE_MPI=0 MARCH=x86-64-v3
PACKAGED := README.md LICENSE data dev/guide dev/notes dev/pictures llmc/checkpoint/README.md \
            $(addprefix scripts/,multi_node pretrain published report) $(wildcard scripts/*.py)
VERSION  := $(shell sed -n 's/^\#define LLMC_VERSION "\(.*\)"/\1/p' llmc/log/versions.cpp)
DIST     := train_gpt-$(VERSION)-linux-$(shell uname -m)
package = mkdir -p $1 && cp -R --parents --remove-destination $2 $(PACKAGED) $1 && find $1 -name __pycache__ -prune -exec rm -r {} +

install:
	$(if $(wildcard train_gpt train_gpt_cpu),,$(error nothing is built yet: make, and then make install))
	$(call package,$(DESTDIR)$(PREFIX)/lib/train_gpt,$(wildcard train_gpt train_gpt_cpu))
	mkdir -p $(DESTDIR)$(PREFIX)/bin
	$(foreach program,$(wildcard train_gpt train_gpt_cpu),ln -sf ../lib/train_gpt/$(program) $(DESTDIR)$(PREFIX)/bin/$(program) &&) true
uninstall:
	rm -rf $(DESTDIR)$(PREFIX)/lib/train_gpt $(addprefix $(DESTDIR)$(PREFIX)/bin/,train_gpt train_gpt_cpu)
dist:
	$(MAKE) all $(DIST_OPTIONS)
	rm -rf build/dist/$(DIST)
	$(call package,build/dist/$(DIST),train_gpt_cpu $(if $(NVCC),train_gpt))
	tar -czf build/dist/$(DIST).tar.gz -C build/dist $(DIST)
	@ls -l build/dist/$(DIST).tar.gz

# For scripts: where the build for the GPUs of this machine lies; an empty line where there are none.
gpu-build:
	@echo $(if $(FOUND_ARCHS),$(CUDA_DIR))

clean:
	rm -rf build train_gpt train_gpt_cpu

-include $(patsubst %.o,%.d,$(sort $(FUZZED_OBJECTS) $(CPU_OBJECTS) $(CPU_TEST_OBJECTS) $(CPU_RANK_TEST_OBJECTS) $(CPU_PROBE_OBJECTS) $(CPU_MAIN) \
    $(CUDA_OBJECTS) $(CUDA_TEST_OBJECTS) $(CUDA_RANK_TEST_OBJECTS) $(CUDA_PROBE_OBJECTS) $(CUDA_MAIN) $(PROBE_MAIN_OBJECT) \
    $(GRADIENTS_MAIN) $(call virtual_objects,$(VIRTUAL_GPU) $(VIRTUAL_NCCL) $(VIRTUAL_TESTS))) $(addprefix $(CPU_DIR)/dev/,bench_cpu.cu.o bench_step.cpp.o))
