# tests/unit/test_X.c and tests/sim/test_X.c are one program each; other .c files beside them are shared
# helpers, archived. tests/e2e/*.c are programs that the scripts there use. Every test may use every room;
# --as-needed keeps OpenBLAS out of those that do not compute.

unit_SRC := $(wildcard tests/unit/test_*.c)
sim_SRC := $(wildcard tests/sim/test_*.c)
# passfs needs libfuse; the tests that use it skip without.
HAS_FUSE := $(shell $(PKG_CONFIG) --exists fuse3 2>/dev/null && echo yes)
e2e_SRC := $(filter-out $(if $(HAS_FUSE),,tests/e2e/passfs.c),$(wildcard tests/e2e/*.c))
# kill_driver is one program of several files.
kill_PARTS := $(filter-out tests/e2e/kill_driver.c,$(wildcard tests/e2e/kill_*.c))
bench_SRC := $(wildcard tests/bench/*.c)
# A libnccl that plays what it is told; loaded by the tests of comm/.
script_SRC := $(wildcard tests/comm/*.c)
NCCL_SCRIPT := $(BUILD)/tests/comm/libnccl-script.so
# A CUDA driver of ours over memfds and threads, with the real one's names.
emu_SRC := $(wildcard tests/cuda/*.c)
CUDA_EMU := $(BUILD)/tests/cuda/libcuda-emu.so
helper_SRC := $(filter-out $(unit_SRC) $(sim_SRC),$(wildcard tests/unit/*.c tests/sim/*.c))

test_programs = $(patsubst %.c,$(BUILD)/%,$(1))
UNIT := $(call test_programs,$(unit_SRC))
SIM := $(call test_programs,$(sim_SRC))
E2E_HELPERS := $(call test_programs,$(filter-out $(kill_PARTS),$(e2e_SRC)))
BENCH := $(call test_programs,$(bench_SRC))
# large.sh takes minutes and gigabytes: make check-large.
E2E := $(filter-out $(addprefix tests/e2e/,lib.sh mounts.sh cuda.sh large.sh),$(wildcard tests/e2e/*.sh))
# make check-unit TESTS="io log": only these
ifneq ($(TESTS),)
UNIT := $(filter $(TESTS:%=$(BUILD)/tests/unit/test_%),$(UNIT))
SIM := $(filter $(TESTS:%=$(BUILD)/tests/sim/test_%),$(SIM))
E2E := $(filter $(TESTS:%=tests/e2e/%.sh),$(E2E))
endif
# tests/fuzz/fuzz_X.c is one target, linked with replay.c for the checks and with libFuzzer for `make fuzz`.
fuzz_SRC := $(wildcard tests/fuzz/*.c)
fuzz_MAIN := $(wildcard tests/fuzz/fuzz_*.c)
fuzz_SHARED := tests/fuzz/fuzz.c tests/fuzz/mutate.c tests/sim/simfs.c
FUZZ := $(call test_programs,$(fuzz_MAIN))
ifneq ($(TESTS),)
FUZZ := $(filter $(TESTS:%=$(BUILD)/tests/fuzz/fuzz_%),$(FUZZ))
endif
LINT := $(wildcard tests/lint/*.sh)
MODEL := $(wildcard tests/model/run)
HELPER_LIB := $(if $(helper_SRC),$(BUILD)/lib/tests.a)

$(BUILD)/lib/tests.a: $(call objects,$(helper_SRC))

$(BUILD)/obj/tests/%.o: ROOM_CFLAGS = $(BLAS_CFLAGS)

# The tests that compare our declarations with NVIDIA's headers find them in a toolkit; without one they skip.
CUDA_CFLAGS := $(if $(CUDA_HOME),$(addprefix -isystem ,$(wildcard $(CUDA_HOME)/include)))
ABI_TESTS := $(BUILD)/obj/tests/unit/test_cuda_abi.o $(BUILD)/obj/tests/unit/test_nccl_abi.o
$(ABI_TESTS): ROOM_CFLAGS = $(CUDA_CFLAGS)

$(UNIT) $(SIM) $(filter-out %/passfs,$(E2E_HELPERS)) $(BENCH): $(BUILD)/%: $(BUILD)/obj/%.o $(HELPER_LIB) $(ALL_LIBS)
	$(call link,$(CMOCKA_LIBS) $(BLAS_LIBS) $(PKG_LIBS))

# Any library of ours that is none of the trainer's.
$(filter %/test_compute,$(call test_programs,$(unit_SRC))): | $(BUILD)/libcairn.so

$(NCCL_SCRIPT): $(BUILD)/obj/tests/comm/nccl_script.o
	$(call say,LINK,$@)mkdir -p $(@D) && $(CC) -shared $(LANGUAGE) $(CFLAGS) $(LINK_FLAGS) $(SHARED_FLAGS) -o $@ $^ $(SYSTEM_LIBS)
$(filter %/test_nccl %/test_nccl_id %/test_nccl_library,$(call test_programs,$(unit_SRC))): | $(NCCL_SCRIPT) $(BUILD)/cairn-nccl-id

$(CUDA_EMU): $(call objects,$(emu_SRC)) $(call archives,device base)
	$(call say,LINK,$@)mkdir -p $(@D) && $(CC) -shared $(LANGUAGE) $(CFLAGS) $(LINK_FLAGS) $(SHARED_FLAGS) -o $@ $(filter %.o,$^) \
		$(filter %.a,$^) $(SYSTEM_LIBS)
$(filter %/test_stream %/test_pusher %/test_gpu_session %/test_cuda %/test_cuda_driver %/test_cuda_emu %/test_chunks %/test_slab %/test_nvml %/test_gpu_probe,$(call test_programs,$(unit_SRC))): | $(CUDA_EMU)

$(BUILD)/tests/e2e/gpu_trainer: | $(CUDA_EMU)

$(BUILD)/tests/e2e/kill_driver: $(call objects,$(kill_PARTS))

$(BUILD)/tests/e2e/passfs: $(BUILD)/obj/tests/e2e/passfs.o
	$(call link,-lfuse3)

fuzz_parts := $(call objects,$(fuzz_SHARED) tools/options.c) $(call archives,agent client device format base)
$(FUZZ): $(BUILD)/%: $(BUILD)/obj/%.o $(BUILD)/obj/tests/fuzz/replay.o $(fuzz_parts)
	$(call link,$(PKG_LIBS))
$(BUILD)/tests/fuzz/seeds: $(call objects,tests/fuzz/seeds.c tests/unit/format_sample.c) $(call archives,format base)
	$(call link,$(CMOCKA_LIBS) $(PKG_LIBS))

include tests/gpu/module.mk
include tests/kernels/module.mk

# What the tests may know: where the build is, and the compiler of the lint scripts.
export BUILD CC CXX
TESTS_RUN = tests/run

.PHONY: check-run check-unit check-sim check-fuzz check-e2e check-model check-lint check-headers check-includes
.PHONY: check-kill check-reattach check-postmortem check-leader check-outage check-flat check-large
# gpu_bundle.sh unpacks it; both it and doctor.sh meet the emulated driver, the trainer's tests the runtime over it.
E2E_MORE = $(NCCL_SCRIPT) $(CUDA_EMU) $(CAIRN_CUDA_EMU) $(CUBLAS_EMU) $(if $(filter %/gpu_bundle.sh,$(E2E)),$(if $(SANITIZE),,$(GPU_BUNDLE)))
check-run: all $(UNIT) $(SIM) $(KERNELS) $(FUZZ) $(E2E_HELPERS) $(E2E_MORE)
	@$(TESTS_RUN) $(UNIT) $(SIM) $(KERNELS) $(KERNEL_SCRIPTS) $(FUZZ) $(LINT) $(MODEL) $(E2E)
check-unit: $(UNIT)
	@$(TESTS_RUN) $(UNIT)
check-sim: all $(SIM)
	@$(TESTS_RUN) $(SIM)
check-fuzz: $(FUZZ)
	@$(TESTS_RUN) $(FUZZ)
check-e2e: all $(E2E_HELPERS) $(E2E_MORE)
	@$(TESTS_RUN) $(E2E)
# The whole of what runs on the emulated driver: training, killed and resumed, and each of its functions failing in
# turn. `make check` does it in a shorter form.
.PHONY: check-cuda-emu
CUDA_UNIT := $(filter %/test_compute_cuda %/test_cuda %/test_cuda_emu %/test_stream %/test_pusher %/test_gpu_session,$(UNIT))
check-cuda-emu: all $(CUDA_UNIT) $(E2E_HELPERS) $(E2E_MORE)
	@CUDA_FAULTS=all CUDA_ROUNDS='$(or $(ROUNDS),12)' $(TESTS_RUN) -t 1200 $(CUDA_UNIT) \
		$(filter %/gpu_session.sh,$(E2E)) $(filter tests/e2e/cuda_%.sh,$(E2E))
check-model:
	@$(TESTS_RUN) $(MODEL)
check-lint: $(GEN_HDR)
	@$(TESTS_RUN) $(LINT)
check-headers: $(GEN_HDR)
	@$(TESTS_RUN) tests/lint/headers.sh
check-includes:
	@$(TESTS_RUN) tests/lint/includes.sh
check-kill check-reattach check-postmortem: check-%: all $(E2E_HELPERS)
	@ROUNDS='$(ROUNDS)' SEED='$(SEED)' BUILD='$(BUILD)' tests/e2e/$*.sh
check-leader: all $(E2E_HELPERS)
	@BUILD='$(BUILD)' tests/e2e/leader_kill.sh whole
check-outage: all $(E2E_HELPERS)
	@OUTAGE_SECONDS='$(SECONDS)' BUILD='$(BUILD)' tests/e2e/outage.sh
check-flat: all $(E2E_HELPERS)
	@ROUNDS='$(ROUNDS)' BUILD='$(BUILD)' tests/e2e/flat.sh

check-large: all $(E2E_HELPERS)
	@BUILD='$(BUILD)' tests/e2e/large.sh
	@MANY=1000000 BUILD='$(BUILD)' tests/e2e/many.sh

# A world of thousands, measured: docs/PERFORMANCE.md, "Large worlds". In memory, unless DIR says where.
.PHONY: check-size
check-size: all $(BUILD)/tests/sim/test_size $(BUILD)/tests/unit/test_group_size
	@SIZE_NODES='$(or $(NODES),1000)' SIZE_TENSORS='$(or $(TENSORS),100000)' TMPDIR='$(or $(DIR),/dev/shm)' \
		$(BUILD)/tests/sim/test_size
	@SIZE_NODES='$(or $(NODES),1000)' $(BUILD)/tests/unit/test_group_size

.PHONY: check-sanitized check-races
# Three measure memory, which would be the sanitizer's own.
check-sanitized: all $(UNIT) $(SIM) $(KERNELS) $(FUZZ) $(E2E_HELPERS) $(E2E_MORE)
	@$(TESTS_RUN) -t 1800 $(UNIT) $(SIM) $(KERNELS) $(FUZZ) $(filter-out %/flat.sh %/many.sh %/memory.sh,$(E2E))
# The race detector of this compiler does not know the widest address space randomization. Hundreds of
# starts of all programs are too slow with it; and it takes the calls that cut_interleave, which has one thread,
# leaves by a jump for ever deeper ones; compute_cuda's kernels are fibers whose accesses the simulator looks at itself.
RACES = $(filter-out %/test_cut_interleave %/test_compute_cuda,$(UNIT)) $(filter-out %/test_fault_sweep,$(SIM))
check-races: all $(RACES)
	@if setarch -R true 2>/dev/null; then exec setarch -R $(TESTS_RUN) -t 1800 $(RACES); \
		else exec $(TESTS_RUN) -t 1800 $(RACES); fi

# ---- speed ----
# make bench [SIZE=1G] [ROUNDS=5] [DIR=folder on the disk to measure]: docs/PERFORMANCE.md
.PHONY: bench bench-run
bench:
	@./setup bench || echo 'make bench: without what could not be installed'
	@$(MAKE) bench-run
bench-run: all $(BENCH)
	@SIZE='$(SIZE)' ROUNDS='$(ROUNDS)' DIR='$(DIR)' tests/bench/run

# ---- fuzzing ----
# make fuzz [FUZZ_SECONDS=10] [TARGET=file]: a build of its own, by clang. fuzz-seeds is for changes of the format.
FUZZ_SECONDS ?= 10
FUZZERS := $(FUZZ:%=%-libfuzzer)
ifneq ($(TARGET),)
FUZZERS := $(filter $(TARGET:%=$(BUILD)/tests/fuzz/fuzz_%-libfuzzer),$(FUZZERS))
endif

.PHONY: fuzz fuzz-run fuzz-seeds
fuzz:
	@./setup fuzz
	@$(MAKE) BUILD=$(BUILD)/fuzz CC=clang SANITIZE=address,undefined WARNINGS=-Wall \
		CFLAGS='-O1 -g -fsanitize=fuzzer-no-link -Wno-attributes -Wno-unknown-pragmas' fuzz-run
fuzz-run: $(FUZZERS)
	@tests/fuzz/run '$(FUZZ_SECONDS)' $(FUZZERS)
$(FUZZERS): $(BUILD)/tests/fuzz/%-libfuzzer: $(BUILD)/obj/tests/fuzz/%.o $(fuzz_parts)
	$(call link,-fsanitize=fuzzer $(PKG_LIBS))
fuzz-seeds: $(BUILD)/tests/fuzz/seeds
	@mkdir -p tests/fuzz/corpus && $(BUILD)/tests/fuzz/seeds tests/fuzz/corpus

# ---- style ----
ROOM_SRC := $(foreach room,$(ROOMS),$($(room)_SRC))
ALL_SRC := $(ROOM_SRC) $(unit_SRC) $(sim_SRC) $(helper_SRC) $(e2e_SRC) $(bench_SRC) $(fuzz_SRC) $(script_SRC) $(emu_SRC) $(gpu_SRC) \
	$(simulator_SRC) $(kernel_SRC) $(filter %.c,$(cuda_SRC))
ALL_HDR := $(wildcard $(ROOMS:%=%/*.h) trainer/*/*.h tests/*/*.h tests/*/*/*.h)
ALL_CXX := $(wildcard comm/*.cc $(ROOMS:%=%/*.cu) $(ROOMS:%=%/*.cuh) tests/cuda/sim/*.cuh tests/kernels/*.cu)

.PHONY: tidy tidy-files tidy-rooms format format-check
tidy: tidy-files
	@tests/lint/style.sh
# The object stands for the headers that the source includes.
tidy-files: $(patsubst %.c,$(BUILD)/tidy/%.ok,$(ALL_SRC))
tidy-rooms: $(patsubst %.c,$(BUILD)/tidy/%.ok,$(ROOM_SRC))
$(BUILD)/tidy/%.ok: %.c $(BUILD)/obj/%.o .clang-tidy
	$(call say,TIDY,$<)mkdir -p $(@D) && clang-tidy --quiet $< -- -Iclient $(CPPFLAGS_ALL) $(LANGUAGE) $(PKG_CFLAGS) $(BLAS_CFLAGS) \
		-Itests/cuda/sim $(CUDA_CFLAGS) > $(@:.ok=.log) 2>&1 && touch $@ || { cat $(@:.ok=.log); exit 1; }
format:
	clang-format -i $(ALL_SRC) $(ALL_HDR) $(ALL_CXX)
format-check:
	@clang-format --dry-run -Werror $(ALL_SRC) $(ALL_HDR) $(ALL_CXX)
