# Builds train_gpt, the CUDA program, and train_gpt_cpu, the same program on the host device. `make help` lists targets
# and options. dev/build.mk adds what developers need: tests, sanitizers, packages, the virtual GPU.
.DEFAULT_GOAL := all
comma := ,
space := $() $()

# ---- options -------------------------------------------------------------------------------------------------------
PRECISION  ?= AUTO           ## default of --precision: AUTO, FP32 or BF16
GPU_ARCH   ?= $(FOUND_ARCH)  ## GPUs to build for: sm_80, sm_89, sm_90a, sm_100, sm_120, several with commas, or all
MARCH      ?= native         ## CPU to build for: g++'s -march
USE_MPI    ?= $(if $(MPICXX),1,0)                          ## 1: several processes with mpirun
USE_NCCL   ?= $(if $(NCCL_INCLUDE),1,0)                    ## 1: several GPUs at full speed
USE_ONEDNN ?= $(if $(wildcard /usr/include/dnnl.hpp),1,0)  ## 1: fast BF16 and FP8 matmuls on CPUs that have them
SANITIZE   ?=                ## build for the host device with address (and undefined) or thread
UNITY      ?= 1              ## 0: compile each file alone: a whole build takes longer, the one after an edit less
PTX        ?= 0              ## 1: CUDA objects keep their PTX, for the virtual GPU
PREFIX     ?= /usr/local     ## where make install puts programs, scripts and guides

# ---- tools and libraries -------------------------------------------------------------------------------------------
CUDA_HOME ?= $(firstword $(wildcard $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null)) /usr/local/cuda))
NVCC      := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc))
MPICXX    ?= $(shell command -v mpicxx 2>/dev/null)
CCACHE    ?= $(shell command -v ccache 2>/dev/null)
# NCCL's header is enough, because the program loads the library when it runs. scripts/setup.sh puts it into .venv.
NCCL_HOME ?=
NCCL_INCLUDE := $(patsubst %/nccl.h,%,$(firstword $(wildcard $(addsuffix /nccl.h,$(NCCL_HOME)/include \
    $(CUDA_HOME)/include /usr/include /usr/local/include .venv/lib/python3*/site-packages/nvidia/nccl/include))))
# The OpenMP build of OpenBLAS shares its threads with ours; threads of the pthread build would compete with them.
BLAS_DIR := $(firstword $(wildcard /usr/lib/*/openblas-openmp))
# Code for 8.0 runs on 8.6 and 8.7, code for 10.0 on 10.3, and code for 12.0 on 12.1. nvidia-smi prints errors where its
# answers go, so only numbers count.
GPU_ARCHS   := sm_80 sm_89 sm_90a sm_100 sm_120
FOUND_ARCHS := $(sort $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -n \
    -e 's/^8\.9$$/sm_89/p' -e 's/^8\.[0-9]$$/sm_80/p' -e 's/^9\.0$$/sm_90a/p' -e 's/^10\.[0-9]$$/sm_100/p' \
    -e 's/^12\.[0-9]$$/sm_120/p'))
FOUND_ARCH  := $(if $(FOUND_ARCHS),$(subst $(space),$(comma),$(FOUND_ARCHS)),sm_90a)

# The comments behind options leave spaces at their end.
GIVEN_ONEDNN := $(filter command,$(origin USE_ONEDNN))
GUESSED_ARCH := $(if $(FOUND_ARCHS),,$(filter file,$(origin GPU_ARCH)))
OPTIONS := PRECISION GPU_ARCH MARCH USE_MPI USE_NCCL USE_ONEDNN SANITIZE UNITY PTX PREFIX
$(foreach option,$(OPTIONS),$(eval $(option) := $(strip $($(option)))))
expected = $(if $(filter-out $2,$($1)),$(error $1=$($1): expected $3))
$(call expected,PRECISION,AUTO FP32 BF16,AUTO$(comma) FP32 or BF16)
$(call expected,SANITIZE,address thread,address or thread)
$(foreach option,USE_MPI USE_NCCL USE_ONEDNN UNITY PTX,$(call expected,$(option),0 1,0 or 1))
ARCH_NAMES := $(sort $(patsubst sm_all,all,$(addprefix sm_,$(patsubst sm_%,%,$(subst $(comma), ,$(GPU_ARCH))))))
needed = $(if $1,,$(error $2))
$(call needed,$(if $(ARCH_NAMES),$(if $(filter-out all $(GPU_ARCHS),$(ARCH_NAMES)),,yes)),GPU_ARCH=$(GPU_ARCH): \
    expected all$(comma) or some of $(GPU_ARCHS) with commas between them (sm_80 is for 8.6 too))
$(if $(NVCC),$(call needed,$(filter 0,$(USE_NCCL))$(NCCL_INCLUDE),USE_NCCL=1 needs nccl.h in CUDA_HOME$(comma) /usr$(comma) \
    /usr/local or NCCL_HOME: install libnccl-dev$(comma) or run scripts/setup.sh))
$(call needed,$(filter 0,$(USE_MPI))$(MPICXX),USE_MPI=1 needs mpicxx in PATH: install Open MPI (libopenmpi-dev$(comma) \
    openmpi-bin) or MPICH; scripts/setup.sh does)
ifeq ($(USE_ONEDNN)$(filter train_gpt_cpu,$(MAKECMDGOALS)),0train_gpt_cpu)
$(info note: without oneDNN (libdnnl-dev; scripts/setup.sh installs it) BF16 and FP8 matmuls are slower on new CPUs)
endif

# ---- configurations ------------------------------------------------------------------------------------------------
# One directory each, so that a changed option never links old objects. What is the same for both devices is compiled
# once, in build/shared.
SUFFIX     := $(if $(filter-out AUTO,$(PRECISION)),-$(PRECISION))$(if $(filter 0,$(USE_MPI)),-nompi)
SUFFIX     := $(SUFFIX)$(if $(GIVEN_ONEDNN),-onednn$(USE_ONEDNN))
CPU_DIR    := build/cpu-$(MARCH)$(SUFFIX)
CUDA_DIR   := build/cuda-$(subst $(space),-,$(ARCH_NAMES))$(SUFFIX)$(if $(filter 0,$(USE_NCCL)),-nonccl)
CUDA_DIR   := $(CUDA_DIR)$(if $(filter 1,$(PTX)),-ptx)
SHARED_DIR := build/shared
ifneq ($(CCACHE),)  # it does not know which processor "native" is
export CCACHE_NAMESPACE := $(shell $(CXX) -march=$(MARCH) -Q --help=target 2>/dev/null | md5sum | cut -c -16)
endif
GIT_VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)

# ---- flags ---------------------------------------------------------------------------------------------------------
# No -ffast-math: it would break NaN poison and rounding tricks. No contractions except for fma(): g++'s choice depends
# on the loop and the processor, so two instances of one kernel would round differently.
WARNINGS := -Wall -Wextra -Wno-restrict  # g++ 12 has false alarms on std::string
# A unit has the same __FILE__, and anonymous classes outside of the main file.
UNIT_FLAGS = $(if $(filter build/units/%,$<),-Wno-subobject-linkage -fmacro-prefix-map=./=)
CXXFLAGS   = -std=c++20 -I. $(WARNINGS) $(UNIT_FLAGS)
LEVEL    := -Og  # C++ around the kernels runs once per launch, and compiles in three fifths of the time of -O2
CXXFLAGS_HOST = $(CXXFLAGS) -fopenmp -fno-math-errno -ffp-contract=off -march=$(MARCH) -MMD -MP -DLLMC_CUDA=0
# With its default limit g++ unrolls loops over the 8 elements of a vector access before it can vectorise them: kernels
# would take up to twice as long.
CXXFLAGS_CPU    = $(CXXFLAGS_HOST) $(LEVEL) $(if $(findstring clang,$(CXX)),,--param max-completely-peel-times=7)
CXXFLAGS_SHARED = $(CXXFLAGS) -Werror=undef $(LEVEL) -fopenmp -MMD -MP  # with LLMC_CUDA a file does not compile
CXXFLAGS_CUDA   = $(CXXFLAGS) $(LEVEL) -fopenmp -MMD -MP -DLLMC_CUDA=1 -I$(CUDA_HOME)/include
# Not -gencode, which ccache takes for -g. -O1 is for host code: device code always has -O3. fmt assumes that nvcc does
# not know constexpr. "all" adds PTX of the newest architecture, from which drivers of later GPUs make code.
ARCHS     := $(if $(filter all,$(ARCH_NAMES)),$(GPU_ARCHS) compute_120,$(ARCH_NAMES))
code_of    = $(if $(filter 1,$(PTX)),[$1$(comma)$(1:sm_%=compute_%)],$1)
GENCODE   := $(foreach arch,$(ARCHS),--generate-code=arch=$(arch:sm_%=compute_%)$(comma)code=$(call code_of,$(arch)))
NVCCFLAGS := -std=c++20 -I. -O1 -DLLMC_CUDA=1 $(GENCODE) $(if $(filter 1,$(PTX)),--compress-mode=none) -Xptxas -v \
             -DFMT_USE_CONSTEXPR=1 --expt-relaxed-constexpr -Xcompiler -fopenmp,-Wall
# Defines for .cpp files, and libraries. MPI's are those of mpicxx, without its C++ bindings.
MPI_FLAGS := $(if $(filter 1,$(USE_MPI)),-DLLMC_USE_MPI=1 $(shell $(MPICXX) -show 2>/dev/null))
MPI_LIBS  := $(filter-out -lmpi_cxx -lmpicxx -lmpichcxx,$(filter -L% -l% -Wl$(comma)%,$(MPI_FLAGS)))
DEFAULT   := $(if $(filter FP32,$(PRECISION)),fp32)$(if $(filter BF16,$(PRECISION)),bf16)
DEFINES   := $(filter -I% -D%,$(MPI_FLAGS)) $(if $(DEFAULT),-DLLMC_DEFAULT_PRECISION='"$(DEFAULT)"')
DEFINES_CPU  := $(DEFINES) -DLLMC_BUILT_FOR='"$(MARCH)"' $(if $(filter 1,$(USE_ONEDNN)),-DLLMC_USE_ONEDNN=1)
DEFINES_CUDA := $(DEFINES) -DLLMC_BUILT_FOR='"$(ARCHS)"' \
                $(if $(filter 1,$(USE_NCCL)),-DLLMC_USE_NCCL=1 -I$(NCCL_INCLUDE))
LIBS_CPU  := $(if $(filter 1,$(USE_ONEDNN)),-ldnnl) $(addprefix -L,$(BLAS_DIR)) $(BLAS_DIR:%=-Wl$(comma)-rpath$(comma)%) \
             -lopenblas -lcrypto -fopenmp -lpthread $(MPI_LIBS)
NCCL_LIB  := $(abspath $(filter .venv/% $(NCCL_HOME)/%,$(NCCL_INCLUDE:include=lib)))
LIBS_CUDA := -L$(CUDA_HOME)/lib64 $(foreach dir,$(CUDA_HOME)/lib64 $(NCCL_LIB),-Xlinker -rpath -Xlinker $(dir)) \
             -lcublasLt -lcrypto -lgomp -lpthread -ldl $(subst -Wl$(comma),-Xlinker ,$(MPI_LIBS))

# ---- sources and objects -------------------------------------------------------------------------------------------
# A file that needs something special in a build says so in a line "// build: ...". `per device`: a .cpp file that is
# compiled for each device, as .cu files are. `optimized`: -O3, because it computes. dev/build.mk has the other marks.
MARKS  := $(shell grep -rE '^// build: ' --include=*.cpp --include=*.cu llmc dev test | sed 's|:// build: |:|; s/ /-/g')
marked  = $(foreach mark,$(MARKS),$(if $(findstring $1,$(mark)),$(firstword $(subst :, ,$(mark)))))
LLMC       := $(wildcard llmc/*/*.cpp llmc/*/*.cu llmc/kernels/hopper/*.cu) build/git_version.cpp
HOST_ONLY  := $(wildcard llmc/device/host/*.cpp llmc/kernels/host/*.cpp)
PER_DEVICE := %.cu $(HOST_ONLY) $(call marked,per-device)
OPTIMIZED  := $(call marked,optimized) $(HOST_ONLY)
# The CPU program runs kernels that wait as loops (llmc/kernels/host/launch.h), and others on a plain grid. Test programs
# link an emulator of GPU threads as their grid (dev/build.mk); test_cpu also has the kernels that have a loop.
LAUNCHERS  := $(wildcard llmc/kernels/*.cu) $(addprefix llmc/,comm/reductions.cu fp8/scaling.cu optim/prepare_step.cu)
GRID       := llmc/device/host/grid.cpp

# Headers take four fifths of a file's time, so files that are compiled alike are compiled as one: a unit is a file in
# build/units that includes them. All names in it must differ, those in anonymous namespaces too. Kernels that take nvcc
# long are in no unit.
# Sanitizers look at the core, so it also has the files of the upper folders that are marked for them.
plain           = $(filter-out $(PER_DEVICE) $(OPTIMIZED),$(filter $(patsubst %,llmc/%/%,$1),$(LLMC)))
UPPER          := commands flags log plan run
SANITIZED      := $(filter $(call plain,$(UPPER)),$(call marked,threads) $(call marked,addresses))
FOR_DEVICE     := $(filter $(call marked,per-device),$(LLMC))
# text.cpp is first because it includes <fmt/format.h>, which fmt 8 wants to be included before anything is formatted.
TEXT           := llmc/base/text.cpp
unit_core      := $(TEXT) $(filter-out $(TEXT),$(call plain,base data comm checkpoint device) $(SANITIZED))
unit_model     := $(call plain,kernels shard fp8 linear optim model train)
unit_settings  := $(filter-out $(SANITIZED),$(call plain,log flags))
unit_runs      := $(filter-out $(SANITIZED),$(call plain,plan run commands))
unit_optimized := $(filter-out $(PER_DEVICE),$(filter $(OPTIMIZED),$(LLMC)))
unit_device    := $(filter-out $(OPTIMIZED),$(FOR_DEVICE))
unit_device_optimized := $(filter $(OPTIMIZED),$(FOR_DEVICE))
unit_loops     := $(filter-out %/attention.cpp $(LAUNCHERS),$(wildcard llmc/kernels/host/*.cpp))
unit_attention := $(patsubst %,llmc/kernels/attention_%.cu,forward fp32 logits)
unit_tensors   := $(patsubst %,llmc/kernels/%.cu,activation activation_fp8 attention_decode bias classifier embedding \
                  norm quantize_blocks rope)
# The CPU program has some kernels of these two units. Of other .cu files it only has what calls the loops.
unit_arrays    := $(patsubst %,llmc/kernels/%.cu,clip elementwise initial_values muon quantize update)
unit_steps     := $(addprefix llmc/,comm/reductions.cu fp8/scaling.cu optim/prepare_step.cu)
UNITS    := core model settings runs optimized device device_optimized loops attention tensors arrays steps
UNITS    := $(if $(filter 0,$(UNITY))$(filter fuzz,$(MAKECMDGOALS)),,$(UNITS))
unit_file = build/units/$1$(suffix $(firstword $(unit_$1)))
in_units  = $(foreach unit,$(UNITS),$(if $(filter $(unit_$(unit)),$1),$(call unit_file,$(unit)))) \
            $(filter-out $(foreach unit,$(UNITS),$(unit_$(unit))),$1)
PER_DEVICE += $(patsubst %,build/units/%.cpp,device device_optimized loops)
OPTIMIZED  += $(foreach unit,optimized device_optimized loops arrays steps,$(call unit_file,$(unit))) \
              $(unit_arrays) $(unit_steps)

shared        = $(patsubst %,$(SHARED_DIR)/%.o,$1)
objects_in    = $(patsubst %,$1/%.o,$(filter $(PER_DEVICE),$2)) $(call shared,$(filter-out $(PER_DEVICE),$2))
cpu_objects   = $(call objects_in,$(CPU_DIR),$(call in_units,$1))
cuda_objects  = $(call objects_in,$(CUDA_DIR),$(call in_units,$1))
CPU_OBJECTS   = $(call cpu_objects,$(filter-out $(LAUNCHERS) $(GRID),$(LLMC) $(HOST_ONLY)))
CPU_LAUNCHERS = $(call cpu_objects,$(LAUNCHERS))
CPU_GRID      = $(call cpu_objects,$(GRID))
CUDA_OBJECTS  = $(call cuda_objects,$(LLMC))
CPU_PROGRAMS  = $(CPU_DIR)/train_gpt_cpu
CUDA_PROGRAMS = $(CUDA_DIR)/train_gpt

# ---- rules ---------------------------------------------------------------------------------------------------------
optimized_in = $(OPTIMIZED:%=$1/%.o)
$(foreach dir,$(CPU_DIR) $(CUDA_DIR) $(SHARED_DIR),$(call optimized_in,$(dir))): LEVEL := -O3
$(CPU_DIR)/%.cpp.o: CXXFLAGS_CPU += $(DEFINES_CPU)
$(CUDA_DIR)/llmc/device/runtime.cu.o: NVCCFLAGS += -DLLMC_GPU_ARCHS='"$(ARCHS)"'
$(SHARED_DIR)/%.o: % Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_SHARED) $(if $(filter %.cu,$<),-x c++) -c $< -o $@
$(CPU_DIR)/%.o: % Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_CPU) $(if $(filter %.cu,$<),-x c++) -c $< -o $@
$(CUDA_DIR)/%.cpp.o: %.cpp Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS_CUDA) $(DEFINES_CUDA) -c $< -o $@
$(CUDA_DIR)/%.cu.o: %.cu Makefile  # ptxas reports registers and spills into a file next to the object
	@mkdir -p $(@D)
	@echo $(NVCC) ... -c $<
	@$(CCACHE) $(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@ 2> $@.ptxas || { cat $@.ptxas >&2; exit 1; }
	@grep -E "warning|error|serialized" $@.ptxas || true  # "serialized": products of Hopper's kernels that are slower
# The value of "git" in --version and run.json. Rewritten only when it changes.
build/git_version.cpp: FORCE
	@mkdir -p $(@D)
	@echo 'namespace llmc { extern const char kGitVersion[]; const char kGitVersion[] = "$(GIT_VERSION)"; }' > $@.$$PPID
	@if cmp -s $@.$$PPID $@; then rm $@.$$PPID; else mv $@.$$PPID $@; fi
include dev/build.mk
$(foreach unit,$(UNITS),$(call unit_file,$(unit))): build/units/%: FORCE
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $(unit_$(basename $*)) > $@.$$PPID
	@if cmp -s $@.$$PPID $@; then rm $@.$$PPID; else mv $@.$$PPID $@; fi
$(CPU_DIR)/train_gpt_cpu: $(call shared,train_gpt.cu)
$(filter-out %/test_cpu,$(CPU_PROGRAMS)): $(CPU_LAUNCHERS)
$(filter-out $(EMULATING),$(CPU_PROGRAMS)): $(CPU_GRID)
$(CUDA_DIR)/train_gpt: $(call shared,train_gpt.cu)
$(CPU_PROGRAMS): $(CPU_OBJECTS)
	$(CXX) $(LINK_FLAGS) $^ -o $@ $(LIBS_CPU)
$(CUDA_PROGRAMS): $(CUDA_OBJECTS)
	$(NVCC) $^ -o $@ $(LIBS_CUDA)

# ---- targets -------------------------------------------------------------------------------------------------------
.PHONY: all train_gpt train_gpt_cpu test install uninstall clean help FORCE
.DELETE_ON_ERROR:
all: train_gpt_cpu $(if $(NVCC),train_gpt)  ## train_gpt_cpu, and train_gpt if there is nvcc
	$(if $(NVCC),,@echo "nvcc not found (PATH, CUDA_HOME, /usr/local/cuda): the CUDA build is skipped")
train_gpt: $(CUDA_DIR)/train_gpt  ## the CUDA program
	$(if $(GUESSED_ARCH),@echo "note: no GPU found here: built for H100 and H200 (GPU_ARCH=sm_89 for an RTX 4090; GPU_ARCH=all for every card)")
	@cmp -s $< $@ || cp -f $< $@
train_gpt_cpu: $(CPU_DIR)/train_gpt_cpu  ## the same program on the host device; needs no CUDA toolkit
	@cmp -s $< $@ || cp -f $< $@
test:  ## everything that needs no GPU
	./scripts/test.sh
install:  ## what is built, into PREFIX (and DESTDIR); make uninstall
	$(if $(wildcard train_gpt train_gpt_cpu),,$(error nothing is built yet: make, and then make install))
	$(call package,$(DESTDIR)$(PREFIX)/lib/train_gpt,$(wildcard train_gpt train_gpt_cpu))
	mkdir -p $(DESTDIR)$(PREFIX)/bin
	ln -sf $(addprefix ../lib/train_gpt/,$(wildcard train_gpt train_gpt_cpu)) $(DESTDIR)$(PREFIX)/bin
uninstall:
	rm -rf $(DESTDIR)$(PREFIX)/lib/train_gpt $(addprefix $(DESTDIR)$(PREFIX)/bin/,train_gpt train_gpt_cpu)
clean:  ## removes all builds
	rm -rf build train_gpt train_gpt_cpu check_card check_card_cpu
help:  ## this list
	@sed -n -e 's/^\([a-z][a-z_-]*\):.*  ## /make \1@/p' -e 's/^\([A-Z_]*\) *?= .*## /  \1=@/p' \
	    Makefile dev/build.mk dev/virtual_gpu/build.mk | awk -F@ '{ printf "%-22s%s\n", $$1, $$2 }'

-include $(shell find $(sort $(CPU_DIR) $(PLAIN_DIR)) $(CUDA_DIR) $(SHARED_DIR) -name '*.d' 2>/dev/null)
