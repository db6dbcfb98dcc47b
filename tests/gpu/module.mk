# What is carried to a machine with a GPU: tests/gpu/run, its steps (one program or script each), and the programs of
# Cairn, linked so that the machine needs a C library and NVIDIA's driver. docs/TESTING.md, "On a GPU".

GPU_BUNDLE_MIB_MAX := 60
gpu_SRC := $(wildcard tests/gpu/*.c)
gpu_SHARED := tests/gpu/step.c tests/gpu/copier.c
GPU_BUNDLE := $(BUILD)/gpu-bundle.tar.gz
GPU_DIR := $(BUILD)/gpu-bundle/cairn-gpu
GPU_STEPS := $(patsubst tests/gpu/%.c,$(GPU_DIR)/steps/%,$(filter-out $(gpu_SHARED),$(gpu_SRC)))
GPU_PROGRAMS := $(addprefix $(GPU_DIR)/bin/,cairn cairnd cairn-train)
# The GPU's part of the trainer, where the toolkit was there to build it.
GPU_PLUGIN := $(filter %/cairn-cuda.so,$(PROGRAMS))
# The tests of kernels, of the same sources as on the simulator, with what nvcc made.
GPU_KERNELS := $(if $(GPU_PLUGIN),$(patsubst tests/kernels/%.c,$(GPU_DIR)/steps/kernels/%,$(wildcard tests/kernels/test_gpu_*.c)))
GPU_FILES := $(GPU_DIR)/run $(GPU_DIR)/commit $(patsubst tests/gpu/%,$(GPU_DIR)/steps/%,$(wildcard tests/gpu/*.sh)) $(GPU_STEPS) \
	$(GPU_KERNELS) $(GPU_PROGRAMS) $(patsubst $(BUILD)/%,$(GPU_DIR)/lib/cairn/%,$(BUILD)/cairn-nccl-id $(GPU_PLUGIN)) \
	$(GPU_DIR)/lib/libcmocka.so.0

static = -Wl,-Bstatic $(1) -Wl,-Bdynamic
GPU_PKG_LIBS := $(call static,-luring -lprotobuf-c -linih -ljansson -lcrypto)
GPU_BLAS_LIBS := $(call static,-lopenblas)
$(GPU_STEPS) $(GPU_PROGRAMS): LINK_FLAGS += -s -Wl,-rpath,'$$ORIGIN/../lib'
$(GPU_KERNELS): LINK_FLAGS += -s -Wl,-rpath,'$$ORIGIN/../../lib'

$(GPU_STEPS): $(GPU_DIR)/steps/%: $(BUILD)/obj/tests/gpu/%.o $(call objects,$(gpu_SHARED)) $(HELPER_LIB) $(ALL_LIBS)
	$(call link,$(CMOCKA_LIBS) $(GPU_PKG_LIBS))
$(BUILD)/lib/gpu-kernels.a: $(call cuda_objects,cuda,$(wildcard kernels/*.cu) \
		$(filter-out tests/kernels/test_%,$(wildcard tests/kernels/*.c)))
$(GPU_KERNELS): $(GPU_DIR)/steps/kernels/%: $(BUILD)/obj/cuda/tests/kernels/%.o $(BUILD)/lib/gpu-kernels.a \
		$(call archives,kernels format base)
	$(call link,$(CMOCKA_LIBS) $(GPU_PKG_LIBS) -L$(CUDA_ROOT)/lib64 $(call static,-lcudart_static -lstdc++) -lrt)
$(GPU_DIR)/bin/cairn: $(BUILD)/obj/tools/main.o $(call archives,tools client kernels device format base)
	$(call link,$(GPU_PKG_LIBS))
$(GPU_DIR)/bin/cairnd: $(BUILD)/obj/agent/main.o $(call archives,agent device format base)
	$(call link,$(GPU_PKG_LIBS))
$(GPU_DIR)/bin/cairn-train: $(BUILD)/obj/trainer/main.o $(call archives,trainer client comm kernels device format base)
	$(call link,$(GPU_BLAS_LIBS) $(GPU_PKG_LIBS))

copy = $(call say,COPY,$@)mkdir -p $(@D) && cp $< $@
$(GPU_DIR)/run: tests/gpu/run
	$(copy)
# What the results name; empty where this is no git tree. Written anew only when it is another one.
.PHONY: gpu-commit
$(GPU_DIR)/commit: gpu-commit
	@mkdir -p $(@D); commit=$$([ -z "$$(git rev-parse --show-prefix 2>&1)" ] && git rev-parse HEAD 2>/dev/null) && \
		{ git diff --quiet HEAD || commit="$$commit and changes"; }; \
		[ -e $@ ] && [ "$$(cat $@)" = "$$commit" ] || echo "$$commit" >$@
$(GPU_DIR)/steps/%.sh: tests/gpu/%.sh
	$(copy)
$(GPU_DIR)/lib/cairn/%: $(BUILD)/%
	$(copy)
$(GPU_DIR)/lib/libcmocka.so.0: $(shell $(CC) -print-file-name=libcmocka.so.0)
	$(copy)

# Only what is named: a step that is no longer there may still lie in the folder.
$(GPU_BUNDLE): $(GPU_FILES)
	$(call say,TAR,$@)tar -C $(BUILD)/gpu-bundle --owner 0 --group 0 -czf $@ $(GPU_FILES:$(BUILD)/gpu-bundle/%=%) && \
		bytes=$$(stat -c %s $@) && [ $$bytes -le $$(($(GPU_BUNDLE_MIB_MAX) << 20)) ] || \
		{ echo "$@ is larger than $(GPU_BUNDLE_MIB_MAX) MiB"; exit 1; }

.PHONY: gpu-bundle check-gpu
gpu-bundle: $(GPU_BUNDLE)
check-gpu: $(GPU_BUNDLE)
	@tests/gpu/run $(if $(OUT),--out '$(OUT)')
