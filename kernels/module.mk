kernels_SRC := $(wildcard kernels/*.c)

# Loops over elements vectorise at -O3. The two switches drop errno and floating-point traps, which nobody
# reads; no value changes, every reduction keeps the order it is written in.
$(BUILD)/obj/kernels/%.o: ROOM_CFLAGS = $(if $(SANITIZE),,-O3) -fno-math-errno -fno-trapping-math
