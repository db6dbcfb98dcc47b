/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/settings.h"
#include <errno.h>
#include <math.h>
#include <stddef.h>

enum settings_type { INTEGER, REAL, TEXT, SWITCH, CHOICE, FILES, SCALE };

struct option {
        const char *name;
        enum settings_type type;
        enum settings_kind kind;
        size_t offset;
        double low, high;
        const char *standard; /* default */
        const char *choices;  /* of a CHOICE: "linear|cosine|constant" */
        const char *help;
};

#define AT(field) offsetof(struct settings, field)
#define BIG 1e15

static const struct option options[] = {
        {"steps", INTEGER, SETTINGS_CONFIG, AT(steps), 1, BIG, "300", NULL,
         "length of the run and of its schedule"},
        {"batch", INTEGER, SETTINGS_NUMERICS, AT(batch), 1, 65536, "8", NULL,
         "samples in a micro-batch"},
        {"accumulate", INTEGER, SETTINGS_NUMERICS, AT(accumulate), 0, 65536, "0", NULL,
         "micro-batches a step (0: 1, or what --global-batch asks for)"},
        {"zero", INTEGER, SETTINGS_FREE, AT(zero), 0, 1, "0", NULL,
         "1: ranks share the optimizer's state (ZeRO-1)"},
        {"global-batch", INTEGER, SETTINGS_CONFIG, AT(global_batch), 0, 1 << 24, "0", NULL,
         "samples a step (0: batch x accumulate x ranks, on resume what it was)"},
        {"context", INTEGER, SETTINGS_NUMERICS, AT(context), 1, 65536, "64", NULL,
         "tokens of a training sample"},
        {"positions", INTEGER, SETTINGS_CONFIG, AT(positions), 0, 65536, "0", NULL,
         "positions that the model knows (0: as --context)"},
        {"layers", INTEGER, SETTINGS_CONFIG, AT(layers), 1, 256, "2", NULL, "transformer blocks"},
        {"heads", INTEGER, SETTINGS_CONFIG, AT(heads), 1, 256, "4", NULL, "heads of attention"},
        {"width", INTEGER, SETTINGS_CONFIG, AT(width), 1, 16384, "64", NULL,
         "channels; a multiple of --heads"},
        {"dtype", CHOICE, SETTINGS_CONFIG, AT(dtype), 0, 0, "fp32", "fp32|bf16|fp16",
         "weights; narrow ones have fp32 masters"},
        {"vocab", CHOICE, SETTINGS_CONFIG, AT(vocabulary), 0, 0, "byte", "byte|char",
         "256 bytes, or the characters that occur"},
        {"data", FILES, SETTINGS_LOCAL, AT(data), 0, 0, NULL, NULL,
         "text to learn, repeatable; a folder stands for its files\n"
         "                         (default /usr/share/common-licenses)"},
        {"eval-data", FILES, SETTINGS_LOCAL, AT(eval_data), 0, 0, NULL, NULL,
         "text to evaluate on (default: the last twentieth of the data)"},
        {"seed", INTEGER, SETTINGS_CONFIG, AT(seed), 0, 9e15, "1", NULL,
         "of weights, sample order and dropout"},
        {"lr", REAL, SETTINGS_CONFIG, AT(lr), 0, 1e3, "0.001", NULL, "highest learning rate"},
        {"min-lr", REAL, SETTINGS_CONFIG, AT(min_lr), 0, 1e3, "0.0001", NULL, "rate at the end"},
        {"warmup", INTEGER, SETTINGS_CONFIG, AT(warmup), 0, BIG, "20", NULL,
         "steps until the highest rate"},
        {"decay", CHOICE, SETTINGS_CONFIG, AT(decay), 0, 0, "cosine", "linear|cosine|constant",
         "from the highest rate to --min-lr"},
        {"weight-decay", REAL, SETTINGS_CONFIG, AT(weight_decay), 0, 1e3, "0.1", NULL,
         "decoupled, on matrices"},
        {"beta1", REAL, SETTINGS_CONFIG, AT(beta1), 0, 0.999999, "0.9", NULL, "of AdamW"},
        {"beta2", REAL, SETTINGS_CONFIG, AT(beta2), 0, 0.99999999, "0.99", NULL, "of AdamW"},
        {"epsilon", REAL, SETTINGS_CONFIG, AT(epsilon), 1e-30, 1, "1e-8", NULL, "of AdamW"},
        {"clip", REAL, SETTINGS_CONFIG, AT(clip), 0, 1e9, "1", NULL,
         "largest norm of the gradient (0: any)"},
        {"dropout", REAL, SETTINGS_CONFIG, AT(dropout), 0, 0.99, "0.1", NULL,
         "probability to drop"},
        {"ema", REAL, SETTINGS_CONFIG, AT(ema), 0, 0.9999999, "0", NULL,
         "decay of averaged weights (0: none)"},
        {"loss-scale", SCALE, SETTINGS_CONFIG, AT(loss_scale), 0x1p-24, 0x1p24, "auto", NULL,
         "off, dynamic or a number (auto: dynamic for fp16, else off)"},
        {"loss-scale-growth", INTEGER, SETTINGS_CONFIG, AT(loss_scale_growth), 1, BIG, "200", NULL,
         "good steps until a dynamic scale doubles"},
        {"eval-every", INTEGER, SETTINGS_FREE, AT(eval_every), 0, BIG, "0", NULL,
         "steps between evaluations (0: none)"},
        {"eval-batches", INTEGER, SETTINGS_FREE, AT(eval_batches), 1, 1 << 20, "4", NULL,
         "micro-batches of an evaluation"},
        {"patience", INTEGER, SETTINGS_FREE, AT(patience), 0, BIG, "0", NULL,
         "evaluations without a gain until training ends (0: never)"},
        {"max-seconds", REAL, SETTINGS_FREE, AT(max_seconds), 0, 1e12, "0", NULL,
         "of training over all restarts (0: any)"},
        {"stop-at", INTEGER, SETTINGS_LOCAL, AT(stop_at), 0, BIG, "0", NULL,
         "save and leave after this step; the run is not finished (0: never)"},
        {"device", TEXT, SETTINGS_FREE, AT(device), 0, 0, "cpu", NULL,
         "cpu, cuda (the GPU of the rank's number on its node) or cuda:N"},
        {"device-timeout", REAL, SETTINGS_LOCAL, AT(device_timeout), 1, 1e6, "300", NULL,
         "seconds that a GPU may take for a micro-batch or an update"},
        {"tf32", SWITCH, SETTINGS_LOCAL, AT(tf32), 0, 0, NULL, NULL,
         "cuda: products of fp32 by TF32, faster and less exact"},
        {"collectives", CHOICE, SETTINGS_LOCAL, AT(collectives), 0, 0, "auto", "auto|gloo|nccl",
         "between ranks (auto: nccl on GPUs, else gloo)"},
        {"log", TEXT, SETTINGS_FREE, AT(log), 0, 0, NULL, NULL,
         "JSON lines (default: log.jsonl in the run's folder)"},
        {"run", TEXT, SETTINGS_LOCAL, AT(run), 0, 0, NULL, NULL, "name (default $CAIRN_RUN)"},
        {"interface", TEXT, SETTINGS_LOCAL, AT(interface), 0, 0, NULL, NULL,
         "network interface or address of this host, for ranks on several (default "
         "$CAIRN_ADDRESS)"},
        {"bootstrap-timeout", REAL, SETTINGS_LOCAL, AT(bootstrap_timeout), 1, 1e6, "60", NULL,
         "seconds for all ranks to meet"},
        {"collective-timeout", REAL, SETTINGS_LOCAL, AT(collective_timeout), 1, 1e6, "60", NULL,
         "seconds that one exchange between ranks may take"},
        {"threads", INTEGER, SETTINGS_NUMERICS, AT(threads), 1, 1024, "1", NULL, "of BLAS"},
        {"save-timeout", REAL, SETTINGS_LOCAL, AT(save_timeout), 0, 1e6, "300", NULL,
         "seconds that the last snapshot may take"},
        {"quiet", SWITCH, SETTINGS_LOCAL, AT(quiet), 0, 0, NULL, NULL, "no line of progress"},
        {"without-checkpoints", SWITCH, SETTINGS_LOCAL, AT(without_checkpoints), 0, 0, NULL, NULL,
         "train without an agent; nothing is saved"},
        {"stall-step", INTEGER, SETTINGS_LOCAL, AT(stall_step), 0, BIG, "0", NULL,
         "rehearsal: the data loader stalls in this step"},
        {"stall-ms", INTEGER, SETTINGS_LOCAL, AT(stall_ms), 0, 1e9, "0", NULL, "for so long"},
        {"eval-stall-ms", INTEGER, SETTINGS_LOCAL, AT(eval_stall_ms), 0, 1e9, "0", NULL,
         "rehearsal: each evaluation takes longer"},
        {"step-ms", INTEGER, SETTINGS_LOCAL, AT(step_ms), 0, 1e9, "0", NULL,
         "rehearsal: each step takes longer, outside the update"},
        {"update-stall-step", INTEGER, SETTINGS_LOCAL, AT(update_stall_step), 0, BIG, "0", NULL,
         "rehearsal: this step's update stalls half done (0 with a time: each)"},
        {"update-stall-ms", INTEGER, SETTINGS_LOCAL, AT(update_stall_ms), 0, 1e9, "0", NULL,
         "for so long"},
        {"overflow-step", INTEGER, SETTINGS_LOCAL, AT(overflow_step), 0, BIG, "0", NULL,
         "rehearsal: the gradient of this step is infinite"},
        {"nan-step", INTEGER, SETTINGS_LOCAL, AT(nan_step), 0, BIG, "0", NULL,
         "rehearsal: gradients are NaN from this step on"},
        {"oom-step", INTEGER, SETTINGS_LOCAL, AT(oom_step), 0, BIG, "0", NULL,
         "rehearsal: memory is short for --batch in this step"},
        {"rehearse-on", INTEGER, SETTINGS_LOCAL, AT(rehearse_on), -1, 65535, "-1", NULL,
         "the rank that all this happens to (-1: each)"},
        {"sample-log", TEXT, SETTINGS_LOCAL, AT(sample_log), 0, 0, NULL, NULL,
         "rehearsal: position and number of each sample, in FILE.RANK"},
        {"batchnorm-demo", SWITCH, SETTINGS_CONFIG, AT(batchnorm_demo), 0, 0, NULL, NULL,
         "rehearsal: running statistics that the forward pass changes"},
        {"batchnorm-wrong", SWITCH, SETTINGS_LOCAL, AT(batchnorm_wrong), 0, 0, NULL, NULL,
         "rehearsal: the same, registered as if only updates changed them"},
        {"probe-gpu", SWITCH, SETTINGS_LOCAL, AT(probe_gpu), 0, 0, NULL, NULL,
         "what --device cuda needs and whether it is here, then end"},
        {"help", SWITCH, SETTINGS_LOCAL, AT(help), 0, 0, NULL, NULL, "this text"},
};
enum { OPTION_COUNT = sizeof(options) / sizeof(options[0]) };

static int refuse(const struct option *o, const char *reason, struct cairn_error *reterr) {
        char name[64];

        (void) snprintf(name, sizeof(name), "--%s", o->name);
        return error_set(reterr, CAIRN_ERR_API, "read option", name, "%s", reason);
}

static const struct option *find(const char *name, size_t length) {
        for (size_t i = 0; i < OPTION_COUNT; i++)
                if (strlen(options[i].name) == length && !memcmp(options[i].name, name, length))
                        return &options[i];
        return NULL;
}

static int set_number(void *field, const struct option *o, const char *value,
                      struct cairn_error *reterr) {
        char reason[256], *end;

        errno = 0;
        double number = strtod(value, &end);
        bool whole = o->type != INTEGER || (number == floor(number) && !strpbrk(value, ".eExXpP"));
        if (end == value || *end || errno || !isfinite(number) || !whole) {
                (void) snprintf(reason, sizeof(reason),
                                "'%.40s' is not a %s; give one from %.12g to %.12g", value,
                                o->type == INTEGER ? "whole number" : "number", o->low, o->high);
                return refuse(o, reason, reterr);
        }
        if (number < o->low || number > o->high) {
                (void) snprintf(reason, sizeof(reason),
                                "%.40s is out of range; give a value from %.12g to %.12g", value,
                                o->low, o->high);
                return refuse(o, reason, reterr);
        }
        if (o->type == INTEGER)
                *(int64_t *) field = (int64_t) number;
        else
                *(double *) field = number;
        return 0;
}

static int set_choice(int64_t *field, const struct option *o, const char *value,
                      struct cairn_error *reterr) {
        char reason[256];
        size_t length = strlen(value);
        int64_t index = 0;

        for (const char *choice = o->choices;; index++) {
                size_t end = strcspn(choice, "|");
                if (end == length && !memcmp(choice, value, length)) {
                        *field = index;
                        return 0;
                }
                if (!choice[end])
                        break;
                choice += end + 1;
        }
        (void) snprintf(reason, sizeof(reason), "'%.40s' is unknown; give one of %s", value,
                        o->choices);
        return refuse(o, reason, reterr);
}

static int set_scale(double *field, const struct option *o, const char *value,
                     struct cairn_error *reterr) {
        if (!strcmp(value, "off") || !strcmp(value, "dynamic") || !strcmp(value, "auto")) {
                *field = value[0] == 'o' ? 0 : value[0] == 'd' ? -1 : NAN;
                return 0;
        }
        TRY(set_number(field, o, value, reterr));
        /* Other factors would round each gradient a second time. */
        int exponent;
        if (frexp(*field, &exponent) != 0.5)
                return refuse(o, "the scale must be a power of two, e.g. 1024; it is then exact",
                              reterr);
        return 0;
}

static int set_value(struct settings *s, const struct option *o, const char *value,
                     struct cairn_error *reterr) {
        void *field = (char *) s + o->offset;

        switch (o->type) {
        case INTEGER:
        case REAL:
                return set_number(field, o, value, reterr);
        case CHOICE:
                return set_choice(field, o, value, reterr);
        case SCALE:
                return set_scale(field, o, value, reterr);
        case TEXT:
                *(const char **) field = value;
                return 0;
        case SWITCH:
                if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
                        return refuse(o, "is either given or not; it takes no value", reterr);
                *(bool *) field = value[0] == 'y';
                return 0;
        case FILES: {
                struct settings_files *files = field;
                if (files->count == SETTINGS_FILES_MAX)
                        return refuse(o, "was given more than 256 times; name a folder instead",
                                      reterr);
                files->path[files->count++] = value;
                return 0;
        }
        }
        return 0;
}

static int set_defaults(struct settings *s, struct cairn_error *reterr) {
        for (size_t i = 0; i < OPTION_COUNT; i++)
                if (options[i].standard)
                        TRY(set_value(s, &options[i], options[i].standard, reterr));
        return 0;
}

int settings_set(struct settings *s, const char *name, const char *value,
                 struct cairn_error *reterr) {
        const struct option *o = find(name, strlen(name));

        if (!o)
                return error_set(reterr, CAIRN_ERR_API, "read option", name,
                                 "there is no such option; cairn-train --help lists them");
        return set_value(s, o, value, reterr);
}

int settings_parse(struct settings *s, int argc, char **argv, struct cairn_error *reterr) {
        memset(s, 0, sizeof(*s));
        TRY(set_defaults(s, reterr));
        for (int i = 1; i < argc; i++) {
                const char *name = argv[i], *value;
                size_t length = strncmp(name, "--", 2) == 0 ? strcspn(name, "=") : 0;
                const struct option *o = length > 2 ? find(name + 2, length - 2) : NULL;
                if (!o)
                        return error_set(reterr, CAIRN_ERR_API, "read option", name,
                                         "there is no such option; cairn-train --help lists them");
                if (name[length])
                        value = name + length + 1;
                else if (o->type == SWITCH)
                        value = "yes";
                else if (i + 1 < argc)
                        value = argv[++i];
                else
                        return refuse(o, "needs a value", reterr);
                TRY(set_value(s, o, value, reterr));
        }
        /* Checked on a copy: an override may still change what the derived values follow from. */
        struct settings copy = *s;
        return s->help || s->probe_gpu ? 0 : settings_check(&copy, reterr);
}

static int refuse_named(const char *name, const char *reason, struct cairn_error *reterr) {
        return refuse(find(name, strlen(name)), reason, reterr);
}

/* Before the number of ranks is known only what no number could make right is refused. */
static int check_batches(struct settings *s, struct cairn_error *reterr) {
        int64_t ranks = s->world > 0 ? s->world : 1;
        char reason[256];

        if (s->global_batch == 0) {
                if (s->accumulate == 0)
                        s->accumulate = 1;
                s->global_batch = s->batch * s->accumulate * ranks;
        } else if (s->accumulate == 0) {
                s->accumulate = s->global_batch / (s->batch * ranks);
        }
        bool fits = s->accumulate * s->batch * ranks == s->global_batch;
        if (fits || (s->world == 0 && s->global_batch % s->batch == 0))
                return 0;
        (void) snprintf(reason, sizeof(reason),
                        "%lld samples cannot be made of micro-batches of %lld on %lld rank%s; give "
                        "a --batch that divides it, and leave --accumulate out",
                        (long long) s->global_batch, (long long) s->batch, (long long) ranks,
                        ranks == 1 ? "" : "s");
        return refuse_named("global-batch", reason, reterr);
}

int settings_keep_global_batch(struct settings *s, const char *stored, struct cairn_error *reterr) {
        if (!stored || s->global_batch > 0)
                return 0;
        TRY(settings_set(s, "global-batch", stored, reterr));
        if (s->accumulate * s->batch * s->world != s->global_batch)
                s->accumulate = 0;
        return 0;
}

int settings_check(struct settings *s, struct cairn_error *reterr) {
        char reason[256];

        if (s->positions == 0)
                s->positions = s->context;
        if (s->context > s->positions) {
                (void) snprintf(reason, sizeof(reason),
                                "%lld is more than the %lld positions of the model; give less, or "
                                "a new run with more --positions",
                                (long long) s->context, (long long) s->positions);
                return refuse_named("context", reason, reterr);
        }
        if (s->width % s->heads) {
                (void) snprintf(reason, sizeof(reason),
                                "%lld is not a multiple of --heads %lld; change one of them",
                                (long long) s->width, (long long) s->heads);
                return refuse_named("width", reason, reterr);
        }
        TRY(check_batches(s, reterr));
        if (isnan(s->loss_scale)) /* small gradients are zeros in fp16 */
                s->loss_scale = s->dtype == DTYPE_FP16 ? -1 : 0;
        if (s->min_lr > s->lr)
                return refuse_named("min-lr", "is above --lr; lower it or raise --lr", reterr);
        if (s->batchnorm_wrong)
                s->batchnorm_demo = true;
        if (s->batchnorm_demo && s->world > 1)
                return refuse_named("batchnorm-demo",
                                    "is for one rank: each one's statistics would differ; leave "
                                    "it out, or give cairn run --nproc-per-node 1",
                                    reterr);
        return 0;
}

void settings_rehearse_on(struct settings *s, uint32_t rank) {
        if (s->rehearse_on < 0 || s->rehearse_on == (int64_t) rank)
                return;
        s->stall_step = s->stall_ms = s->eval_stall_ms = s->step_ms = 0;
        s->update_stall_step = s->update_stall_ms = 0;
        s->overflow_step = s->nan_step = s->oom_step = 0;
}

const char *settings_collectives(const struct settings *s) {
        bool on_gpu = !strncmp(s->device, "cuda", strlen("cuda"));

        if (s->collectives == COLLECTIVES_AUTO)
                return on_gpu ? "nccl" : "gloo";
        return s->collectives == COLLECTIVES_NCCL ? "nccl" : "gloo";
}

void settings_done(struct settings *s) {
        if (s)
                memset(s, 0, sizeof(*s));
}

static const char *format_value(const struct settings *s, const struct option *o, char *buf,
                                size_t bytes) {
        const void *field = (const char *) s + o->offset;
        const char *choice = o->choices;
        double number;

        switch (o->type) {
        case INTEGER:
                (void) snprintf(buf, bytes, "%lld", (long long) *(const int64_t *) field);
                return buf;
        case REAL:
                (void) snprintf(buf, bytes, "%.17g", *(const double *) field);
                return buf;
        case SCALE:
                number = *(const double *) field;
                if (number > 0)
                        (void) snprintf(buf, bytes, "%.17g", number);
                return number > 0 ? buf : number < 0 ? "dynamic" : isnan(number) ? "auto" : "off";
        case CHOICE:
                for (int64_t i = 0; i < *(const int64_t *) field; i++)
                        choice += strcspn(choice, "|") + 1;
                (void) snprintf(buf, bytes, "%.*s", (int) strcspn(choice, "|"), choice);
                return buf;
        case TEXT:
                return *(const char *const *) field ? *(const char *const *) field : "";
        case SWITCH:
                return *(const bool *) field ? "yes" : "no";
        case FILES:
                return "";
        }
        return "";
}

static const char *const prefixes[] = {
        [SETTINGS_CONFIG] = "config", [SETTINGS_NUMERICS] = "numerics", [SETTINGS_FREE] = "free"};

int settings_each(const struct settings *s,
                  int (*visit)(const char *key, const char *value, void *argument),
                  void *argument) {
        char key[96], buf[64];

        for (size_t i = 0; i < OPTION_COUNT; i++) {
                if (options[i].kind == SETTINGS_LOCAL)
                        continue;
                (void) snprintf(key, sizeof(key), "%s.%s", prefixes[options[i].kind],
                                options[i].name);
                int r = visit(key, format_value(s, &options[i], buf, sizeof(buf)), argument);
                if (r != 0)
                        return r;
        }
        return 0;
}

const char *settings_option_of_key(const char *key) {
        const char *dot = strchr(key, '.');
        const struct option *o = dot ? find(dot + 1, strlen(dot + 1)) : NULL;
        bool same = o && o->kind != SETTINGS_LOCAL &&
                    strlen(prefixes[o->kind]) == (size_t) (dot - key) &&
                    !memcmp(prefixes[o->kind], key, (size_t) (dot - key));

        return same ? o->name : NULL;
}

void settings_help(FILE *out) {
        (void) fputs("Usage: cairn-train [OPTION]...\n"
                     "Trains a small GPT on text; started by `cairn run`, it continues after a "
                     "crash bit for bit.\n\n",
                     out);
        for (size_t i = 0; i < OPTION_COUNT; i++) {
                const struct option *o = &options[i];
                char head[64];
                (void) snprintf(head, sizeof(head), "--%s%s", o->name,
                                o->type == SWITCH                       ? ""
                                : o->type == FILES                      ? " FILE"
                                : o->type == TEXT                       ? " TEXT"
                                : o->type == CHOICE || o->type == SCALE ? " WORD"
                                                                        : " N");
                (void) fprintf(out, "  %-22s %s%s", head, o->choices ? o->choices : o->help,
                               o->choices ? ": " : "");
                if (o->choices)
                        (void) fputs(o->help, out);
                if (o->standard)
                        (void) fprintf(out, " [%s]", o->standard);
                (void) fputc('\n', out);
        }
        (void) fputs("\nExit status: 0 done or stopped, 64 usage, 65-78 as `cairn run` documents "
                     "them, 75 saved after SIGTERM.\n",
                     out);
}
