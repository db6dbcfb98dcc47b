device_SRC := $(wildcard device/*.c)
