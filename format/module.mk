format_SRC := $(wildcard format/*.c)
format_PROTO := $(wildcard format/*.proto)
format_GEN_OBJ := $(patsubst %.proto,$(BUILD)/obj/gen/%.pb-c.o,$(format_PROTO))
GEN_HDR += $(patsubst %.proto,$(BUILD)/gen/%.pb-c.h,$(format_PROTO))
