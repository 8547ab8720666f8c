# Builds the virtual GPU, the CUDA programs on it, and its own tests (README.md). Included by dev/build.mk.
VIRTUAL_DIR     := build/virtual
VIRTUAL_SOURCE  := dev/virtual_gpu
VIRTUAL_TESTS   := $(wildcard $(VIRTUAL_SOURCE)/test/*.cpp)
VIRTUAL_NCCL    := $(wildcard $(VIRTUAL_SOURCE)/nccl/*.cpp)
VIRTUAL_GPU     := $(wildcard $(VIRTUAL_SOURCE)/*.cpp $(VIRTUAL_SOURCE)/*/*.cpp)
VIRTUAL_GPU     := $(filter-out $(VIRTUAL_TESTS) $(VIRTUAL_NCCL),$(VIRTUAL_GPU))
# Each folder is a unit, as those of the product are (Makefile).
VIRTUAL_UNITS   := $(if $(UNITS),$(VIRTUAL_SOURCE) $(addprefix $(VIRTUAL_SOURCE)/,arithmetic ptx cuda cublaslt nccl test))
$(foreach folder,$(VIRTUAL_UNITS),$(eval unit_$(folder) := $(filter-out %/main.cpp,$(wildcard $(folder)/*.cpp))))
UNITS           += $(VIRTUAL_UNITS)
virtual_objects = $(patsubst %,$(VIRTUAL_DIR)/%.o,$(call in_units,$1))

# Programs of CUDA objects that keep their PTX, linked with what stands in for CUDA, cuBLASLt and NCCL.
VIRTUAL_OUT      := $(VIRTUAL_DIR)$(addprefix -,$(filter-out sm_90a,$(subst $(space),-,$(ARCH_NAMES))))
VIRTUAL_PROGRAMS := $(addprefix $(VIRTUAL_OUT)/,train_gpt check_card test_gpu test_ranks probe)
.PHONY: virtual test-virtual
ifeq ($(PTX),1)
virtual: $(VIRTUAL_PROGRAMS) $(VIRTUAL_OUT)/libnccl.so.2  ## the CUDA programs on the virtual GPU, in build/virtual
else
virtual:  # objects with PTX are another configuration
	$(MAKE) virtual PTX=1
endif
$(VIRTUAL_PROGRAMS): $(call virtual_objects,$(VIRTUAL_GPU)) $(CUDA_OBJECTS) | $(VIRTUAL_OUT)/libnccl.so.2
	$(CXX) -rdynamic -Wl,-rpath,'$$ORIGIN' $(filter %.o,$^) -o $@ $(LIBS_CPU) -ldl  # libnccl.so.2 calls the program
$(VIRTUAL_OUT)/train_gpt: $(call shared,train_gpt.cu)
$(VIRTUAL_OUT)/check_card: $(CUDA_CHECK_OBJECTS)
$(VIRTUAL_OUT)/test_gpu: $(CUDA_TEST_OBJECTS)
$(VIRTUAL_OUT)/test_ranks: $(CUDA_RANK_OBJECTS)
$(VIRTUAL_OUT)/probe: $(CUDA_PROBE_OBJECTS)
$(VIRTUAL_OUT)/libnccl.so.2: $(call virtual_objects,$(VIRTUAL_NCCL))
	@mkdir -p $(@D)
	$(CXX) -shared $^ -o $@ -lrt -lpthread

test-virtual: $(VIRTUAL_DIR)/test_virtual_gpu  ## the virtual GPU's own tests
$(VIRTUAL_DIR)/test_virtual_gpu: $(call virtual_objects,$(VIRTUAL_TESTS) $(VIRTUAL_GPU) $(VIRTUAL_NCCL))
	$(CXX) -rdynamic $^ -o $@ $(LIBS_CPU) -lrt -ldl

# Vectors of this machine, but no contractions: they would not be the instructions that are played.
# Code that executes no PTX is compiled with -Og, which takes about two thirds of the time of -O3.
$(VIRTUAL_DIR)/%.o: OPTIMIZE := -O3
$(foreach folder,cuda nccl test,$(VIRTUAL_DIR)/$(VIRTUAL_SOURCE)/$(folder)/%.o \
    $(VIRTUAL_DIR)/build/units/$(VIRTUAL_SOURCE)/$(folder).cpp.o): OPTIMIZE := -Og
$(VIRTUAL_DIR)/%.o: % Makefile
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS) $(OPTIMIZE) -march=$(MARCH) -fopenmp -fno-math-errno -fno-trapping-math \
	    -ffp-contract=off -fPIC -MMD -MP -I$(CUDA_HOME)/include $(addprefix -I,$(NCCL_INCLUDE)) -c $< -o $@
-include $(shell find $(VIRTUAL_DIR) -name '*.d' 2>/dev/null)
