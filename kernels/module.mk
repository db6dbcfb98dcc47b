kernels_SRC := $(wildcard kernels/*.c)

# Loops over elements vectorise at -O3. The two switches drop errno and floating-point traps, which nobody
# reads; no value changes, every reduction keeps the order it is written in.
$(BUILD)/obj/kernels/%.o: ROOM_CFLAGS = $(if $(SANITIZE),,-O3) -fno-math-errno -fno-trapping-math

# What runs on a GPU: .cu files, and .c files that call CUDA's runtime. Other rooms add theirs. By nvcc it becomes
# cairn-cuda.so, where there is a toolkit; by $(CXX), on a simulator, what the tests use (tests/module.mk).
cuda_SRC := $(wildcard kernels/*.cu)
CUDA_HOME ?= /usr/local/cuda
NVCC := $(or $(if $(CUDA_HOME),$(wildcard $(CUDA_HOME)/bin/nvcc)),$(shell command -v nvcc))
CUDA_ROOT := $(patsubst %/bin/,%,$(dir $(realpath $(NVCC))))
ifneq ($(NVCC),)
ifeq ($(SANITIZE),)
PROGRAMS += $(BUILD)/cairn-cuda.so
endif
endif

# No contraction, no approximations, no flush to zero: results are the references' bits. Nothing of ours needs more than
# sm_80 has, so that one pass of the compiler serves all; its PTX is what newer GPUs than these translate.
NVCC_FLAGS := -std=c++17 -O3 --fmad=false -prec-div=true -prec-sqrt=true -ftz=false -Werror all-warnings \
	-gencode arch=compute_80,code=[sm_80,sm_90,sm_100,compute_80]
cuda_objects = $(addprefix $(BUILD)/obj/$(1)/,$(addsuffix .o,$(basename $(2))))

$(BUILD)/obj/cuda/%.o: %.cu
	$(call say,NVCC,$<)mkdir -p $(@D) && $(NVCC) -I. -D_GNU_SOURCE $(NVCC_FLAGS) -ccbin $(CXX) \
		-Xcompiler -fPIC,-fvisibility=hidden,-ffp-contract=off,-Wall -MMD -MP -c -o $@ $<
$(BUILD)/obj/cuda/%.o: %.c | $(GEN_HDR)
	$(call say,CC,$<)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -isystem $(CUDA_ROOT)/include -MMD -MP -c -o $@ $<

.SECONDEXPANSION:
$(BUILD)/cairn-cuda.so: $$(call cuda_objects,cuda,$$(cuda_SRC)) $$(call archives,base)
	$(call say,LINK,$@)$(CXX) -shared $(CXX_LANGUAGE) $(LINK_FLAGS) $(SHARED_FLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) \
		-L$(CUDA_ROOT)/lib64 -lcudart_static -lrt $(SYSTEM_LIBS)
