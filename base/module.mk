base_SRC := $(wildcard base/*.c)
