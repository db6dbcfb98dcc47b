trainer_SRC := $(wildcard trainer/*.c)
# The CUDA back end goes into the plugin with the kernels.
cuda_SRC += $(wildcard trainer/cuda/*.c)

ifneq ($(wildcard trainer/main.c),)
PROGRAMS += $(BUILD)/cairn-train
endif

$(BUILD)/obj/trainer/%.o: ROOM_CFLAGS = $(BLAS_CFLAGS)

.SECONDEXPANSION:
$(BUILD)/cairn-train: $(BUILD)/obj/trainer/main.o $$(call archives,trainer client comm kernels device format base)
	$(call link,$(BLAS_LIBS) $(PKG_LIBS))
