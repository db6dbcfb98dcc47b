tools_SRC := $(wildcard tools/*.c)

ifneq ($(wildcard tools/main.c),)
PROGRAMS += $(BUILD)/cairn
endif

.SECONDEXPANSION:
$(BUILD)/cairn: $(BUILD)/obj/tools/main.o $$(call archives,tools client kernels device format base)
	$(call link,$(PKG_LIBS))
