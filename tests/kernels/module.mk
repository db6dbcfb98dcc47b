# CUDA's runtime over the emulated driver, with a simulator that runs kernels (tests/cuda/sim), and what is tested by it.

simulator_SRC := $(wildcard tests/cuda/sim/*.c)
kernel_SRC := $(wildcard tests/kernels/*.c)
CAIRN_CUDA_EMU := $(BUILD)/tests/cuda/cairn-cuda-emu.so
CUBLAS_EMU := $(BUILD)/tests/cuda/libcublas-emu.so
KERNELS := $(call test_programs,$(filter tests/kernels/test_%,$(kernel_SRC)))
kernel_HELPERS := $(filter-out tests/kernels/test_%,$(kernel_SRC))
KERNEL_SCRIPTS := $(wildcard tests/kernels/*.sh)
ifneq ($(TESTS),)
KERNEL_SCRIPTS := $(filter $(TESTS:%=tests/kernels/%.sh),$(KERNEL_SCRIPTS))
KERNELS := $(filter $(TESTS:%=$(BUILD)/tests/kernels/test_%),$(KERNELS))
endif

# What runs on a GPU, as C++ on the simulator. The hooks of -fsanitize=thread, which tell of every access, are the
# simulator's own (tests/cuda/sim/access.c); under another sanitizer that one looks.
EMU_CXXFLAGS = $(filter-out -std=gnu17,$(LANGUAGE)) -std=gnu++17 -fno-exceptions -fno-rtti -fno-threadsafe-statics \
	-Itests/cuda/sim $(if $(SANITIZE),,-fsanitize=thread)
$(BUILD)/obj/cuda-emu/%.o: %.cu
	$(call say,CXX,$<)mkdir -p $(@D) && $(CXX) -I. -D_GNU_SOURCE $(CPPFLAGS) $(CXX_WARNINGS) $(CFLAGS) $(EMU_CXXFLAGS) \
		-MMD -MP -c -o $@ -x c++ $<
$(BUILD)/obj/cuda-emu/%.o: %.c | $(GEN_HDR)
	$(call say,CC,$<)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -Itests/cuda/sim -MMD -MP -c -o $@ $<
$(call objects,$(kernel_SRC) $(filter %.c,$(cuda_SRC))): ROOM_CFLAGS = -Itests/cuda/sim

$(BUILD)/lib/simulator.a: $(call objects,$(filter-out %/cublas.c,$(simulator_SRC)))
$(CAIRN_CUDA_EMU): $(call cuda_objects,cuda-emu,$(cuda_SRC)) $(BUILD)/lib/simulator.a $(call archives,base) $(CUDA_EMU)
	$(call say,LINK,$@)$(CC) -shared $(LANGUAGE) $(CFLAGS) $(LINK_FLAGS) $(SHARED_FLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) \
		-L$(@D) -lcuda-emu -Wl,-rpath,'$$ORIGIN' $(SYSTEM_LIBS)
$(BUILD)/obj/tests/cuda/sim/cublas.o: ROOM_CFLAGS = $(if $(SANITIZE),,-O3)
$(CUBLAS_EMU): $(BUILD)/obj/tests/cuda/sim/cublas.o $(CUDA_EMU)
	$(call say,LINK,$@)$(CC) -shared $(LANGUAGE) $(CFLAGS) $(LINK_FLAGS) $(SHARED_FLAGS) -o $@ $< -L$(@D) -lcuda-emu \
		-Wl,-rpath,'$$ORIGIN' $(SYSTEM_LIBS)
$(filter %/test_compute_cuda,$(call test_programs,$(unit_SRC))): | $(CAIRN_CUDA_EMU) $(CUBLAS_EMU)

rpath = -Wl,-rpath,'$$ORIGIN/$(1)'
$(KERNELS): $(BUILD)/tests/kernels/%: $(BUILD)/obj/tests/kernels/%.o $(call objects,$(kernel_HELPERS)) \
		$(call cuda_objects,cuda-emu,$(wildcard kernels/*.cu tests/kernels/*.cu)) $(BUILD)/lib/simulator.a \
		$(call archives,kernels format base) $(CUDA_EMU) $(CUBLAS_EMU)
	$(call link,$(CMOCKA_LIBS) $(PKG_LIBS) -L$(BUILD)/tests/cuda -lcublas-emu -lcuda-emu $(call rpath,../cuda))

.PHONY: check-kernels check-kernels-once
# Once with every access looked at, once under sanitizers, in another order.
check-kernels: check-kernels-once
	@CAIRN_SIM_SEED=2 $(MAKE) BUILD=$(BUILD)/asan SANITIZE=address,undefined check-kernels-once
check-kernels-once: $(KERNELS)
	@$(TESTS_RUN) -t 600 $(KERNELS)
