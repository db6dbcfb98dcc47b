kernels_SRC := $(wildcard kernels/*.c)
