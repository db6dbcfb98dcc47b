client_SRC := $(wildcard client/*.c)

ifneq ($(client_SRC),)
PROGRAMS += $(BUILD)/libcairn.so $(BUILD)/libcairn.a
endif

client_parts = $(call archives,kernels device format base)

# Beside the room archives the client's objects are named one by one: all of them belong in the library,
# of the other rooms only what they use.
.SECONDEXPANSION:
$(BUILD)/libcairn.so.$(ABI): $$(client_OBJ) $$(client_parts) client/libcairn.map
	$(call say,LINK,$@)$(CC) -shared $(LANGUAGE) $(CFLAGS) $(LINK_FLAGS) $(SHARED_FLAGS) \
		-Wl,-soname,libcairn.so.$(ABI) -Wl,--version-script=client/libcairn.map -o $@ $(filter %.o,$^) \
		-Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(CLIENT_LIBS) $(SYSTEM_LIBS)

$(BUILD)/libcairn.so: $(BUILD)/libcairn.so.$(ABI)
	@ln -sf $(<F) $@

# One object with our own symbols made local: a static link sees cairn_* only, like a dynamic one.
$(BUILD)/libcairn.a: $$(client_OBJ) $$(client_parts)
	$(call say,AR,$@)$(LD) -r -o $(BUILD)/libcairn.o $(filter %.o,$^) --start-group $(filter %.a,$^) --end-group && \
		$(OBJCOPY) --localize-hidden $(BUILD)/libcairn.o && rm -f $@ && $(AR) rcs $@ $(BUILD)/libcairn.o && \
		rm -f $(BUILD)/libcairn.o

# The example includes cairn.h as an installed one.
$(BUILD)/obj/tests/e2e/example.o: CPPFLAGS += -Iclient
