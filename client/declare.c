/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls that declare: memory, tensors, host values, descriptions. After the first cut they are
 * for the inside of an update, which then ends with a new seal.
 */
#include "client/handle.h"

static int check_declaring(struct cairn *c, const char *operation, struct cairn_error *reterr) {
        TRY(handle_check(c, operation, reterr));
        if (c->stage == HANDLE_SEALED || c->stage == HANDLE_STABLE)
                return error_set(reterr, CAIRN_ERR_API, operation, c->run,
                                 "what is sealed changes only between cairn_update_begin and "
                                 "cairn_update_end, followed by cairn_seal");
        return 0;
}

int cairn_alloc(struct cairn *c, uint64_t bytes, void **ret) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!c)
                return CAIRN_ERR_API;
        int r = handle_check(c, "allocate tensor memory", &e);
        if (r == 0 && !ret)
                r = error_set(&e, CAIRN_ERR_API, "allocate tensor memory", c->run,
                              "there is no place for the address");
        if (r == 0)
                r = slabs_allocate(&c->slabs, bytes, ret, NULL, &e);
        return handle_end(c, r, &e);
}

/* Who ignores it hears of it again at the seal: else what is sealed is not what was meant. */
static int declared(struct cairn *c, int r, const struct cairn_error *e) {
        if (r < 0 && c->refused.status == 0)
                c->refused = *e;
        return handle_end(c, r, e);
}

int cairn_register(struct cairn *c, const struct cairn_tensor *t) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!c)
                return CAIRN_ERR_API;
        int r = check_declaring(c, "register tensor", &e);
        if (r == 0)
                r = registry_add_tensor(&c->registry, &c->slabs, t, &e);
        return declared(c, r, &e);
}

int cairn_register_step(struct cairn *c, const char *name, float *data, int64_t *truth) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!c)
                return CAIRN_ERR_API;
        int r = check_declaring(c, "register step", &e);
        if (r == 0)
                r = registry_add_step(&c->registry, &c->slabs, name, data, truth, &e);
        return declared(c, r, &e);
}

static int add_value(struct cairn *c, const char *name, uint32_t type, void *data, uint64_t *length,
                     uint64_t capacity) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!c)
                return CAIRN_ERR_API;
        int r = check_declaring(c, "register state value", &e);
        if (r == 0)
                r = registry_add_value(&c->registry, name, type, data, length, capacity, &e);
        return declared(c, r, &e);
}

int cairn_state_i64(struct cairn *c, const char *name, int64_t *value) {
        return add_value(c, name, CAIRN_VALUE_I64, value, NULL, sizeof *value);
}

int cairn_state_u64(struct cairn *c, const char *name, uint64_t *value) {
        return add_value(c, name, CAIRN_VALUE_U64, value, NULL, sizeof *value);
}

int cairn_state_f64(struct cairn *c, const char *name, double *value) {
        return add_value(c, name, CAIRN_VALUE_F64, value, NULL, sizeof *value);
}

int cairn_state_bytes(struct cairn *c, const char *name, void *value, uint64_t *length,
                      uint64_t capacity) {
        return add_value(c, name, CAIRN_VALUE_BYTES, value, length, capacity);
}

int cairn_describe(struct cairn *c, const char *key, const char *value) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!c)
                return CAIRN_ERR_API;
        int r = handle_check(c, "describe", &e);
        if (r == 0 && c->stage != HANDLE_OPENED)
                r = error_set(&e, CAIRN_ERR_API, "describe", c->run,
                              "descriptions are fixed at the first cairn_seal");
        if (r == 0)
                r = registry_describe(&c->registry, key, value, &e);
        return declared(c, r, &e);
}
