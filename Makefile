# SPDX-License-Identifier: Apache-2.0
#
# Builds every room into $(BUILD); a room is a folder with a module.mk, and a new .c file in it is found by
# itself. A program whose room has no sources yet is left out.
#
#     make [BUILD=build] [V=1]          everything, terse or with full commands
#     make demo [DATA=FILE]             installs what is missing, builds, runs the demonstration
#     make demo-group [RANKS=2]         the like with several ranks, of which one is killed
#     make check                        every test that needs no GPU; ends with "N passed, N failed"
#     make check-unit check-sim check-e2e check-model check-lint    its parts
#     make check-kill check-reattach check-postmortem [ROUNDS=N] [SEED=N]    random kills, as many as you like
#     make check-leader                           a group's leader killed at every point of a commit
#     make check-size [NODES=1000]               what a world of so many nodes costs
#     make check-outage [SECONDS=60]             storage and agent that are away for so long
#     make build/tests/unit/test_log    one test program
#     make check-cuda-emu [ROUNDS=12]            training on the emulated driver, each of its functions failing in turn
#     make check-kernels                          kernels on the simulator, once more under sanitizers
#     make bench [SIZE=1G] [ROUNDS=5] [DIR=.]    speeds beside what the machine can do (docs/PERFORMANCE.md)
#     make fuzz [FUZZ_SECONDS=10] [TARGET=file]  libFuzzer under sanitizers (docs/TESTING.md)
#     make gpu-bundle, make check-gpu            what is proven on a GPU, to be carried there or run here
#     make asan tsan tidy format format-check check-headers check-includes install clean

VERSION := 0.1.0
ABI := 0

BUILD ?= build
V ?= 0
CC = gcc
CXX = g++
AR = ar
LD = ld
OBJCOPY = objcopy
PKG_CONFIG = pkg-config
PROTOC_C = protoc-c
CFLAGS ?= -O2 -g
SANITIZE ?=
PREFIX ?= /usr/local
DESTDIR ?=

ROOMS := base format device kernels comm client agent trainer tools

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
MAKEFLAGS += --no-print-directory
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif

ifeq ($(V),0)
say = @printf '  %-6s %s\n' $(1) $(2);
else
say =
endif

# Asked for once and only when a recipe needs it: `make demo` installs the packages first. A missing
# package yields nothing here and is named by the report.
once = $(eval $(1) := $(2))$(2)
# libcurl is loaded when it is needed: its headers only.
PKG_CFLAGS = $(call once,PKG_CFLAGS,$(shell $(PKG_CONFIG) --cflags liburing libprotobuf-c inih jansson libcrypto libcurl 2>/dev/null))
PKG_LIBS = $(call once,PKG_LIBS,$(shell $(PKG_CONFIG) --libs liburing libprotobuf-c inih jansson libcrypto 2>/dev/null))
CLIENT_LIBS = $(call once,CLIENT_LIBS,$(shell $(PKG_CONFIG) --libs libprotobuf-c 2>/dev/null))
BLAS_CFLAGS = $(call once,BLAS_CFLAGS,$(shell $(PKG_CONFIG) --cflags openblas 2>/dev/null))
BLAS_LIBS = $(call once,BLAS_LIBS,$(shell $(PKG_CONFIG) --libs openblas 2>/dev/null))
CMOCKA_LIBS = $(call once,CMOCKA_LIBS,$(shell $(PKG_CONFIG) --libs cmocka 2>/dev/null))
SYSTEM_LIBS := -pthread -ldl -lm

# An unused parameter is the normal case in tables of functions. No -march and no contraction: results have
# to be the same bits on every machine; faster instructions are chosen at run time.
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition \
	-Wpointer-arith -Wvla -Wimplicit-fallthrough -Wundef -Wwrite-strings -Wformat-security -Wlogical-op \
	-Wduplicated-cond -Wdate-time -Wno-unused-parameter
CPPFLAGS_ALL = -I. -I$(BUILD)/gen -D_GNU_SOURCE -DCAIRN_VERSION='"$(VERSION)"' -include base/banned.h $(CPPFLAGS)
LANGUAGE := -std=gnu17 -ffp-contract=off -fno-fast-math -fvisibility=hidden -fPIC -pthread
ifneq ($(SANITIZE),)
LANGUAGE += -fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all
LINK_FLAGS := -fsanitize=$(SANITIZE)
# Absurd sizes are asked for on purpose; the answer is to be NULL, as it is without a sanitizer.
export ASAN_OPTIONS ?= allocator_may_return_null=1
export TSAN_OPTIONS ?= allocator_may_return_null=1
else
LANGUAGE += -fstack-protector-strong
SHARED_FLAGS := -Wl,-z,defs
endif
LINK_FLAGS += -Wl,--as-needed -Wl,-z,relro -Wl,-z,now $(LDFLAGS)
CFLAGS_ALL = $(LANGUAGE) $(WARNINGS) $(CFLAGS) $(PKG_CFLAGS) $(ROOM_CFLAGS)

# ---- rooms ----
# A module.mk sets ROOM_SRC, and adds its programs to PROGRAMS with their rules.
PROGRAMS :=
GEN_HDR :=
include $(ROOMS:%=%/module.mk)

objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
# main.c stays out of the archive, so that tests link with everything else.
define room_rules
$(1)_OBJ := $$(call objects,$$(filter-out $(1)/main.c,$$($(1)_SRC))) $$($(1)_GEN_OBJ)
$(1)_LIB := $$(if $$(strip $$($(1)_OBJ)),$$(BUILD)/lib/$(1).a)
$$(BUILD)/lib/$(1).a: $$($(1)_OBJ)
endef
$(foreach room,$(ROOMS),$(eval $(call room_rules,$(room))))
archives = $(foreach room,$(1),$($(room)_LIB))
ALL_LIBS := $(call archives,trainer tools agent client comm kernels device format base)

include tests/module.mk

.PHONY: all
all: $(PROGRAMS)

$(BUILD)/obj/%.o: %.c | $(GEN_HDR)
	$(call say,CC,$<)mkdir -p $(@D) && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

$(BUILD)/gen/%.pb-c.c $(BUILD)/gen/%.pb-c.h &: %.proto
	$(call say,PROTO,$<)mkdir -p $(@D) && $(PROTOC_C) --c_out=$(BUILD)/gen $<

$(BUILD)/obj/gen/%.o: $(BUILD)/gen/%.c
	$(call say,CC,$<)mkdir -p $(@D) && $(CC) -I$(BUILD)/gen -D_GNU_SOURCE $(LANGUAGE) $(CFLAGS) $(PKG_CFLAGS) -w -c -o $@ $<

$(BUILD)/lib/%.a:
	$(call say,AR,$@)mkdir -p $(@D) && rm -f $@ && $(AR) rcs $@ $^

# $(call link,libraries): objects and archives are the rule's prerequisites.
link = $(call say,LINK,$@)mkdir -p $(@D) && $(CC) $(LANGUAGE) $(CFLAGS) $(LINK_FLAGS) -o $@ \
	$(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(1) $(SYSTEM_LIBS)

-include $(wildcard $(BUILD)/obj/*/*.d $(BUILD)/obj/*/*/*.d $(BUILD)/obj/*/*/*/*.d)

# ---- what people call ----
# These may have to install packages, so the rest of the work happens in a second make that finds them.
.PHONY: demo demo-group check asan tsan
demo:
	@./setup build
	@$(MAKE) demo-run
demo-group:
	@./setup build
	@$(MAKE) demo-run RANKS=$(or $(RANKS),2)
check:
	@./setup check
	@$(MAKE) check-run
asan:
	@$(MAKE) BUILD=$(BUILD)/asan SANITIZE=address,undefined check-sanitized
tsan:
	@$(MAKE) BUILD=$(BUILD)/tsan SANITIZE=thread check-races

.PHONY: demo-run
demo-run: all
	@$(BUILD)/cairn demo $(if $(DATA),--data '$(DATA)') $(if $(RANKS),--ranks '$(RANKS)')

.PHONY: install
HEADER_DIR = $(DESTDIR)$(PREFIX)/include/cairn
# $(call installed,file,place beneath PREFIX): a text that may name the prefix.
installed = sed 's|@PREFIX@|$(PREFIX)|g' $(1) | install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/$(2)
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/share/doc/cairn
	for p in cairn cairnd cairn-train; do [ ! -e $(BUILD)/$$p ] || install $(BUILD)/$$p $(DESTDIR)$(PREFIX)/bin/; done
	install -D $(BUILD)/cairn-nccl-id $(DESTDIR)$(PREFIX)/lib/cairn/cairn-nccl-id
	for p in cairn-comm-gloo.so cairn-cuda.so; do \
		[ ! -e $(BUILD)/$$p ] || install -m 644 $(BUILD)/$$p $(DESTDIR)$(PREFIX)/lib/cairn/; done
	if [ -e $(BUILD)/libcairn.so ]; then \
		install -m 644 $(BUILD)/libcairn.so.$(ABI) $(DESTDIR)$(PREFIX)/lib/libcairn.so.$(VERSION) && \
		ln -sf libcairn.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libcairn.so.$(ABI) && \
		ln -sf libcairn.so.$(ABI) $(DESTDIR)$(PREFIX)/lib/libcairn.so && \
		install -m 644 $(BUILD)/libcairn.a $(DESTDIR)$(PREFIX)/lib/ && \
		install -d $(HEADER_DIR)/base && install -m 644 client/cairn.h $(HEADER_DIR)/ && \
		install -m 644 base/types.h $(HEADER_DIR)/base/ && \
		sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@VERSION@|$(VERSION)|g' client/cairn.pc.in \
			> $(DESTDIR)$(PREFIX)/lib/pkgconfig/cairn.pc; fi
	for f in README.md docs/*.md; do [ ! -e $$f ] || install -m 644 $$f $(DESTDIR)$(PREFIX)/share/doc/cairn/; done
	for f in systemd/*.service systemd/*.socket; do $(call installed,$$f,lib/systemd/system/$${f##*/}); done
	for d in sysusers.d tmpfiles.d; do $(call installed,systemd/$$d/cairn.conf,lib/$$d/cairn.conf); done
	$(call installed,systemd/cairnd.conf,share/cairn/cairnd.conf)
	$(call installed,tools/completion/cairn.bash,share/bash-completion/completions/cairn)
	for f in docs/man/*.[1-9]; do $(call installed,$$f,share/man/man$${f##*.}/$${f##*/}); done

.PHONY: clean
clean:
	rm -rf $(BUILD)

# ---- the report ----
# Once, at the top, from the make that builds.
ifeq ($(CAIRN_REPORTED)$(filter demo demo-group check asan tsan clean format format-check print-%,$(MAKECMDGOALS)),)
has_package = $(if $(shell $(PKG_CONFIG) --exists $(1) 2>/dev/null && echo yes),✓ $(1),✗ $(1) (missing: ./setup))
has_program = $(if $(shell command -v $(1)),✓ $(1),✗ $(1) ($(2)))
$(info $(foreach p,liburing libprotobuf-c inih jansson libcrypto libcurl openblas cmocka,$(call has_package,$(p)) ) $(call \
	has_program,protoc-c,missing: ./setup)  $(if $(HAS_GLOO),✓,✗) gloo$(if $(HAS_GLOO),, (missing: no groups on \
	CPUs; ./setup))  $(if $(NVCC),✓ nvcc,✗ nvcc (no \
	toolkit: cairn-cuda.so is left out)))
endif
export CAIRN_REPORTED := 1
