/* SPDX-License-Identifier: Apache-2.0 */
#include "client/registry.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "format/check.h"
#include "format/dtype.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>

/* Names of 4 million tensors; what is used, not this, is paid. */
#define REGISTRY_ARENA_BYTES_MAX (64 * GiB)
#define NAME_LABEL_BYTES 200
#define ARGUMENT_BYTES 16
#define DESCRIPTION_BYTES_MAX (1 * MiB)

const char *name_label(const void *name, size_t bytes, char *buf, size_t buf_bytes) {
        const unsigned char *p = name;
        size_t i = 0;
        /* Most names need no escaping, and a restore labels a hundred thousand of them. */
        while (i < bytes && p[i] > ' ' && p[i] < 0x7f && p[i] != '"' && p[i] != '\\')
                i++;
        if (i < bytes || bytes >= buf_bytes)
                return text_escape(buf, buf_bytes, name, bytes);
        memcpy(buf, name, bytes);
        buf[bytes] = 0;
        return buf;
}

const char *shape_label(const uint64_t *shape, size_t rank, char *buf, size_t buf_bytes) {
        size_t at = (size_t) snprintf(buf, buf_bytes, "[");
        for (size_t i = 0; i < rank && at < buf_bytes; i++)
                at += (size_t) snprintf(buf + at, buf_bytes - at, "%s%" PRIu64, i ? ", " : "",
                                        shape[i]);
        if (at < buf_bytes)
                (void) snprintf(buf + at, buf_bytes - at, "]");
        return buf;
}

int registry_init(struct registry *r) {
        *r = (struct registry){0};
        arena_init(&r->arena, REGISTRY_ARENA_BYTES_MAX);
        return 0;
}

void registry_done(struct registry *r) {
        arena_done(&r->arena);
        free(r->tensors);
        free(r->values);
        free(r->descriptions);
        free(r->shadowed);
        free(r->steps);
        name_map_done(&r->tensor_names);
        name_map_done(&r->value_names);
        name_map_done(&r->keys);
}

/* Room for one more item. */
static bool grow(void *items, size_t item_bytes, size_t count, size_t *capacity) {
        void **array = items;
        if (count < *capacity)
                return true;
        size_t larger = *capacity ? *capacity * 2 : 64;
        void *moved = realloc(*array, larger * item_bytes);
        if (!moved)
                return false;
        *array = moved;
        *capacity = larger;
        return true;
}
#define GROW(r, items, singular) \
        grow(&(r)->items, sizeof *(r)->items, (r)->singular##_count, &(r)->singular##_capacity)

static int fail(struct cairn_error *reterr, int status, const char *operation, const char *name,
                const char *message, ...) __attribute__((format(printf, 5, 6)));

/* The name becomes readable here, not for each of a hundred thousand that are good. */
static int fail(struct cairn_error *reterr, int status, const char *operation, const char *name,
                const char *message, ...) {
        char label[NAME_LABEL_BYTES], text[512];
        va_list arguments;

        va_start(arguments, message);
        (void) vsnprintf(text, sizeof text, message, arguments);
        va_end(arguments);
        name_label(name, strnlen(name, TENSOR_NAME_BYTES_MAX + 1), label, sizeof label);
        return error_set(reterr, status, operation, label, "%s", text);
}
#define REFUSE(reterr, operation, name, ...) \
        fail((reterr), CAIRN_ERR_API, (operation), (name), __VA_ARGS__)

static int out_of_memory(const char *operation, const char *name, struct cairn_error *reterr) {
        return fail(reterr, CAIRN_ERR_NOMEM, operation, name, "memory for its record is missing");
}

static int check_name(const char *operation, const char *name, size_t *ret_bytes,
                      struct cairn_error *reterr) {
        if (!name || !*name)
                return REFUSE(reterr, operation, "", "a name is missing");
        size_t bytes = strnlen(name, TENSOR_NAME_BYTES_MAX + 1);
        if (bytes > TENSOR_NAME_BYTES_MAX)
                return REFUSE(reterr, operation, name, "the name is longer than %" PRIu64 " bytes",
                              TENSOR_NAME_BYTES_MAX);
        const ProtobufCBinaryData text = {bytes, (uint8_t *) (uintptr_t) name};
        const char *why = check_text(&text, TENSOR_NAME_BYTES_MAX, false);
        if (why)
                return REFUSE(reterr, operation, name, "the name %s", why);
        *ret_bytes = bytes;
        return 0;
}

/* Row-major without gaps; the stride of a dimension of one element does not matter. */
static bool is_contiguous(const struct cairn_tensor *t) {
        uint64_t expected = 1;
        bool any = false;
        for (uint32_t i = 0; i < t->rank; i++)
                any = any || t->strides[i] != 0;
        for (uint32_t i = t->rank; any && i-- > 0;) {
                if (t->shape[i] != 1 && (t->strides[i] < 0 || (uint64_t) t->strides[i] != expected))
                        return false;
                expected *= t->shape[i];
        }
        return true;
}

static int check_types(const struct cairn_tensor *t, struct tensor *ret,
                       struct cairn_error *reterr) {
        static const char operation[] = "register tensor";
        const struct dtype_info *info = dtype_info(t->dtype);
        if (!role_name(t->role))
                return REFUSE(reterr, operation, t->name, "%d is not a role", (int) t->role);
        if (!info)
                return REFUSE(reterr, operation, t->name, "%d is not a dtype", (int) t->dtype);
        if (t->role == CAIRN_STEP && t->dtype != CAIRN_F32)
                return REFUSE(
                        reterr, operation, t->name,
                        "a tensor of role step is f32, this is %s: register a counter of another "
                        "type as a state value or with role other",
                        info->name);
        if (t->mutates != CAIRN_IN_UPDATE && t->mutates != CAIRN_ANYTIME)
                return REFUSE(reterr, operation, t->name, "mutates is %d", (int) t->mutates);
        ret->role = t->role;
        ret->dtype = t->dtype;
        ret->stored_dtype = t->stored_dtype ? t->stored_dtype : t->dtype;
        ret->mutates = t->mutates;
        if (!dtype_info(ret->stored_dtype))
                return REFUSE(reterr, operation, t->name, "%d is not a dtype to store",
                              (int) ret->stored_dtype);
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (dtype_check_stored(ret->role, ret->dtype, ret->stored_dtype, &e) < 0)
                return REFUSE(reterr, operation, t->name, "%s", e.message);
        return 0;
}

static int check_shape(const struct cairn_tensor *t, struct tensor *ret,
                       struct cairn_error *reterr) {
        static const char operation[] = "register tensor";
        uint64_t bytes, end;
        if (t->rank > CAIRN_RANK_MAX)
                return REFUSE(reterr, operation, t->name, "%" PRIu32 " dimensions are more than %d",
                              t->rank, CAIRN_RANK_MAX);
        if (!shape_bytes(t->shape, t->rank, t->dtype, &ret->elements, &bytes) ||
            bytes > SLAB_BYTES_MAX)
                return REFUSE(reterr, operation, t->name, "the shape's product is too large");
        ret->rank = t->rank;
        memcpy(ret->shape, t->shape, t->rank * sizeof *t->shape);
        ret->replicated = t->replicated;
        ret->sharded = t->sharded;
        ret->count = ret->elements;
        if (ret->elements > 0 && !is_contiguous(t))
                return REFUSE(reterr, operation, t->name,
                              "the strides are not those of contiguous row-major data: register a "
                              "contiguous copy");
        if (t->sharded) {
                if (t->replicated)
                        return REFUSE(reterr, operation, t->name,
                                      "it cannot be replicated and sharded at once");
                if (!add_checked(t->flat_start, t->flat_count, &end) || end > ret->elements)
                        return REFUSE(reterr, operation, t->name,
                                      "elements %" PRIu64 " + %" PRIu64
                                      " are beyond the tensor's %" PRIu64,
                                      t->flat_start, t->flat_count, ret->elements);
                ret->first = t->flat_start;
                ret->count = t->flat_count;
        }
        ret->bytes = ret->count * dtype_info(t->dtype)->bytes;
        return 0;
}

static int check_alias(const struct registry *r, const struct cairn_tensor *t, struct tensor *ret,
                       struct cairn_error *reterr) {
        uint32_t index;
        ret->alias_of = -1;
        if (!t->alias_of)
                return 0;
        if (!name_map_find(&r->tensor_names, t->alias_of, strlen(t->alias_of), &index))
                return REFUSE(reterr, "register tensor", t->name,
                              "the tensor that it is an alias of was not registered before");
        const struct tensor *root = &r->tensors[index];
        if (root->alias_of >= 0) {
                index = (uint32_t) root->alias_of;
                root = &r->tensors[index];
        }
        if (root->data != t->data || root->dtype != ret->dtype || root->first != ret->first ||
            root->count != ret->count || root->mutates != ret->mutates || root->rank != ret->rank ||
            memcmp(root->shape, ret->shape, ret->rank * sizeof *ret->shape) != 0)
                return REFUSE(reterr, "register tensor", t->name,
                              "an alias has the data, dtype, shape and mutability of its tensor %s",
                              root->name);
        ret->alias_of = index;
        return 0;
}

/* The kernel is asked, for it does not die of it: it fetches the argument before it looks at the
 * descriptors. That addresses are mapped would say less: a driver reserves those of a GPU so. */
static bool is_readable(uintptr_t address) {
        struct epoll_event *whole = (void *) (address - address % ARGUMENT_BYTES);
        static_assert(sizeof *whole <= ARGUMENT_BYTES, "it lies in one page");
        return epoll_ctl(-1, EPOLL_CTL_ADD, -1, whole) == 0 || errno != EFAULT;
}

/* Memory of the trainer's own: a helper thread of libcairn reads it. What that could not reach
 * shows here and not at the first copy. */
static int check_elsewhere(const struct slabs *slabs, const struct cairn_tensor *t,
                           struct tensor *ret, struct cairn_error *reterr) {
        const struct device_ops *ops = slabs->device->ops;
        uintptr_t address = (uintptr_t) t->data;
        if (slabs_touch(slabs, t->data, ret->bytes))
                return REFUSE(reterr, "register tensor", t->name,
                              "its %" PRIu64
                              " bytes reach beyond what cairn_alloc gave: allocate all of them",
                              ret->bytes);
        bool on_host = true, wraps = ret->bytes > UINTPTR_MAX - address;
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = wraps ? 0 : ops->check_memory(slabs->device, t->data, ret->bytes, &on_host, &e);
        if (r == CAIRN_ERR_API)
                return REFUSE(reterr, "register tensor", t->name, "%s", e.message);
        if (r < 0 && reterr)
                *reterr = e;
        if (r < 0)
                return r;
        if (wraps || (on_host && (!is_readable(address) || !is_readable(address + ret->bytes - 1))))
                return REFUSE(reterr, "register tensor", t->name,
                              "its %" PRIu64 " bytes are no memory of this process%s", ret->bytes,
                              ops->class == DEVICE_CLASS_HOST
                                      ? ": a GPU's is registered in a session of that GPU "
                                        "(cairn_options.device)"
                                      : " or of the session's GPU: it was freed, or never there");
        ret->elsewhere = ret->mutates != CAIRN_ANYTIME; /* else the shadow is copied */
        return 0;
}

static int check_data(struct slabs *slabs, const struct cairn_tensor *t, struct tensor *ret,
                      struct cairn_error *reterr) {
        ret->data = t->data;
        if (ret->bytes == 0)
                return 0;
        if (!t->data)
                return REFUSE(reterr, "register tensor", t->name,
                              "its data is NULL, but it has elements");
        if (!slabs_find(slabs, t->data, ret->bytes, &ret->place))
                TRY(check_elsewhere(slabs, t, ret, reterr));
        if ((uintptr_t) t->data % dtype_info(ret->dtype)->bytes != 0)
                return REFUSE(reterr, "register tensor", t->name,
                              "its data is not aligned to its elements");
        return 0;
}

static int remember(struct registry *r, const struct tensor *t, struct cairn_error *reterr) {
        if (!GROW(r, tensors, tensor) || !GROW(r, shadowed, shadowed) || !GROW(r, steps, step))
                return out_of_memory("register tensor", t->name, reterr);
        if (name_map_add(&r->tensor_names, t->name, t->name_bytes, (uint32_t) r->tensor_count) < 0)
                return out_of_memory("register tensor", t->name, reterr);
        if (t->shadow)
                r->shadowed[r->shadowed_count++] = r->tensor_count;
        if (t->truth)
                r->steps[r->step_count++] = r->tensor_count;
        if (t->elsewhere && t->alias_of < 0)
                r->elsewhere_count++;
        r->tensors[r->tensor_count++] = *t;
        r->unsealed = true;
        return 0;
}

static int add_tensor(struct registry *r, struct slabs *slabs, const struct cairn_tensor *t,
                      int64_t *truth, struct cairn_error *reterr) {
        static const char operation[] = "register tensor";
        struct tensor new = {.truth = truth};
        size_t name_bytes = 0;

        TRY(check_name(operation, t->name, &name_bytes, reterr));
        if (name_map_find(&r->tensor_names, t->name, name_bytes, NULL))
                return REFUSE(reterr, operation, t->name, "the name was registered before");
        if (r->tensor_count >= TENSOR_COUNT_MAX)
                return REFUSE(reterr, operation, t->name,
                              "there are %" PRIu64 " tensors already, the limit", TENSOR_COUNT_MAX);
        TRY(check_types(t, &new, reterr));
        TRY(check_shape(t, &new, reterr));
        TRY(check_alias(r, t, &new, reterr));
        TRY(check_data(slabs, t, &new, reterr));
        if (new.mutates == CAIRN_ANYTIME &&new.bytes > 0 && new.alias_of < 0)
                TRY(slabs_allocate(slabs, new.bytes, &new.shadow, &new.shadow_place, reterr));
        new.name = arena_strndup(&r->arena, t->name, name_bytes);
        new.name_bytes = (uint32_t) name_bytes;
        if (!new.name)
                return out_of_memory(operation, t->name, reterr);
        return remember(r, &new, reterr);
}

int registry_add_tensor(struct registry *r, struct slabs *slabs, const struct cairn_tensor *t,
                        struct cairn_error *reterr) {
        /* A caller built against an older header passes a shorter struct. */
        struct cairn_tensor full = {0};
        if (!t || t->size < offsetof(struct cairn_tensor, data) + sizeof t->data)
                return error_set(reterr, CAIRN_ERR_API, "register tensor", "",
                                 "the struct's size is not set: use CAIRN_TENSOR_INIT");
        memcpy(&full, t, t->size < sizeof full ? t->size : sizeof full);
        return add_tensor(r, slabs, &full, NULL, reterr);
}

int registry_add_step(struct registry *r, struct slabs *slabs, const char *name, float *data,
                      int64_t *truth, struct cairn_error *reterr) {
        static const char operation[] = "register step";
        size_t bytes = 0;
        if (!data || !truth)
                return REFUSE(reterr, operation, name ? name : "", "data or truth is NULL");
        TRY(check_name(operation, name, &bytes, reterr));
        if (bytes > TENSOR_NAME_BYTES_MAX - (sizeof HOST_VALUE_STEP_PREFIX - 1))
                return REFUSE(reterr, operation, "", "the name is longer than %" PRIu64 " bytes",
                              TENSOR_NAME_BYTES_MAX - (sizeof HOST_VALUE_STEP_PREFIX - 1));
        struct cairn_tensor t = {
                CAIRN_TENSOR_INIT,
                .name = name,
                .role = CAIRN_STEP,
                .dtype = CAIRN_F32,
                .data = data,
                /* Every rank counts the same updates; its own truth is a host value of each. */
                .replicated = true,
        };
        if (r->value_count >= HOST_STATE_VALUES_MAX)
                return REFUSE(reterr, operation, name,
                              "there are %d host values already, the limit", HOST_STATE_VALUES_MAX);
        TRY(add_tensor(r, slabs, &t, truth, reterr));
        size_t whole = sizeof HOST_VALUE_STEP_PREFIX + bytes;
        char *value_name = arena_alloc(&r->arena, whole, 1);
        if (!value_name || !GROW(r, values, value))
                return out_of_memory(operation, name, reterr);
        (void) snprintf(value_name, whole, HOST_VALUE_STEP_PREFIX "%s", name);
        TRY(name_map_add(&r->value_names, value_name, whole - 1, (uint32_t) r->value_count));
        r->tensors[r->tensor_count - 1].truth_value = r->value_count;
        r->values[r->value_count++] = (struct value){
                .name = value_name, .type = CAIRN_VALUE_I64, .data = truth, .capacity = 8};
        return 0;
}

int registry_add_value(struct registry *r, const char *name, uint32_t type, void *data,
                       uint64_t *length, uint64_t capacity, struct cairn_error *reterr) {
        static const char operation[] = "register state value";
        size_t bytes = 0;
        TRY(check_name(operation, name, &bytes, reterr));
        if (strncmp(name, HOST_VALUE_RESERVED_PREFIX, sizeof HOST_VALUE_RESERVED_PREFIX - 1) == 0)
                return REFUSE(reterr, operation, name,
                              "names that begin with " HOST_VALUE_RESERVED_PREFIX
                              " are libcairn's");
        if (!data || (type == CAIRN_VALUE_BYTES && !length))
                return REFUSE(reterr, operation, name, "its pointer is NULL");
        if (capacity > HOST_STATE_BYTES_MAX)
                return REFUSE(reterr, operation, name,
                              "%" PRIu64 " bytes are more than %" PRIu64
                              ": register it as a tensor",
                              capacity, HOST_STATE_BYTES_MAX);
        if (r->value_count >= HOST_STATE_VALUES_MAX)
                return REFUSE(reterr, operation, name, "there are %d of them already, the limit",
                              HOST_STATE_VALUES_MAX);
        if (name_map_find(&r->value_names, name, bytes, NULL))
                return REFUSE(reterr, operation, name, "the name was registered before");
        char *copy = arena_strndup(&r->arena, name, bytes);
        if (!copy || !GROW(r, values, value) ||
            name_map_add(&r->value_names, copy, bytes, (uint32_t) r->value_count) < 0)
                return out_of_memory(operation, name, reterr);
        r->values[r->value_count++] = (struct value){
                .name = copy, .type = type, .data = data, .length = length, .capacity = capacity};
        r->unsealed = true;
        return 0;
}

int registry_describe(struct registry *r, const char *key, const char *value,
                      struct cairn_error *reterr) {
        static const char operation[] = "describe";
        size_t bytes = 0;
        uint32_t index;
        TRY(check_name(operation, key, &bytes, reterr));
        if (!value || strnlen(value, DESCRIPTION_BYTES_MAX + 1) > DESCRIPTION_BYTES_MAX)
                return REFUSE(reterr, operation, key,
                              "its value is NULL or longer than %" PRIu64 " bytes",
                              DESCRIPTION_BYTES_MAX);
        if (name_map_find(&r->keys, key, bytes, &index)) {
                if (strcmp(r->descriptions[index].value, value) == 0)
                        return 0;
                return REFUSE(reterr, operation, key, "it was described before with another value");
        }
        struct description d = {.key = arena_strndup(&r->arena, key, bytes),
                                .value = arena_strndup(&r->arena, value, strlen(value))};
        if (!d.key || !d.value || !GROW(r, descriptions, description) ||
            name_map_add(&r->keys, d.key, bytes, (uint32_t) r->description_count) < 0)
                return out_of_memory(operation, key, reterr);
        r->descriptions[r->description_count++] = d;
        r->unsealed = true;
        return 0;
}

const char *registry_description(const struct registry *r, const char *key, size_t bytes) {
        uint32_t index;
        return name_map_find(&r->keys, key, bytes, &index) ? r->descriptions[index].value : NULL;
}

void registry_write_steps(const struct registry *r) {
        for (size_t i = 0; i < r->step_count; i++) {
                const struct tensor *t = &r->tensors[r->steps[i]];
                *(float *) t->data = (float) *t->truth;
        }
}

void registry_write_shadows(const struct registry *r) {
        for (size_t i = 0; i < r->shadowed_count; i++) {
                const struct tensor *t = &r->tensors[r->shadowed[i]];
                memcpy(t->shadow, t->data, t->bytes);
        }
}
