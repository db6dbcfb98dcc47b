comm_SRC := $(wildcard comm/*.c)

# What talks to gloo is loaded where a communicator asks for it; without the library or a C++ compiler it is not
# built, and the tests that need it skip.
HAS_GLOO := $(if $(wildcard /usr/include/gloo/config.h /usr/local/include/gloo/config.h),$(shell command -v $(CXX)))
ifneq ($(HAS_GLOO),)
PROGRAMS += $(BUILD)/cairn-comm-gloo.so
endif

PROGRAMS += $(BUILD)/cairn-nccl-id

CXX_WARNINGS := -Wall -Wextra -Werror -Wpointer-arith -Wno-unused-parameter
CXX_LANGUAGE = $(filter-out -std=gnu17,$(LANGUAGE)) -std=gnu++17

$(BUILD)/obj/comm/gloo_plugin.o: comm/gloo_plugin.cc
	$(call say,CXX,$<)mkdir -p $(@D) && $(CXX) -I. -D_GNU_SOURCE $(CPPFLAGS) $(CXX_LANGUAGE) $(CXX_WARNINGS) $(CFLAGS) \
		$(if $(SANITIZE),,-O3) -MMD -MP -c -o $@ $<

.SECONDEXPANSION:
$(BUILD)/cairn-comm-gloo.so: $(BUILD)/obj/comm/gloo_plugin.o $$(call archives,base)
	$(call say,LINK,$@)$(CXX) -shared $(CXX_LANGUAGE) $(CFLAGS) $(LINK_FLAGS) $(SHARED_FLAGS) -o $@ $(filter %.o,$^) \
		$(filter %.a,$^) -lgloo $(SYSTEM_LIBS)

$(BUILD)/cairn-nccl-id: $(BUILD)/obj/comm/main.o $$(call archives,comm format base)
	$(call link)
