comm_SRC := $(wildcard comm/*.c)
