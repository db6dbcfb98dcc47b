agent_SRC := $(wildcard agent/*.c)

ifneq ($(wildcard agent/main.c),)
PROGRAMS += $(BUILD)/cairnd
endif

.SECONDEXPANSION:
$(BUILD)/cairnd: $(BUILD)/obj/agent/main.o $$(call archives,agent device format base)
	$(call link,$(PKG_LIBS))
