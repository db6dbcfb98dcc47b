/* SPDX-License-Identifier: Apache-2.0
 *
 * Every call of cairn.h in one small program, as an integrator would write it:
 *     cc example.c $(pkg-config --cflags --libs cairn)
 * Fits y = 3 x + 1 by gradient descent with momentum; `cairn run -- ./example` runs it, and
 * --without-checkpoints trains with no agent at all.
 */
#include <cairn.h>
#include <stdio.h>

#define CHECK(call)                                                    \
        if ((call) < 0) {                                              \
                fprintf(stderr, "example: %s\n", cairn_error_text(c)); \
                return cairn_exit_code(c);                             \
        }

static int add(struct cairn *c, const char *name, enum cairn_role role, float *data) {
        return cairn_register(c,
                              &(struct cairn_tensor){CAIRN_TENSOR_INIT, .name = name, .role = role,
                                                     .dtype = CAIRN_F32, .rank = 1, .shape = {2},
                                                     .data = data, .replicated = true});
}

int main(int argc, char **argv) {
        struct cairn *c = NULL;
        struct cairn_options options;
        struct cairn_session session = {.size = sizeof session};
        struct cairn_report report = {.size = sizeof report};
        struct cairn_stored stored = {.size = sizeof stored, .name = "nothing"};
        struct cairn_statistics statistics = {.size = sizeof statistics};
        float *w, *m, *step_fp32;
        int64_t truth = 0, samples = 0, step, committed = -1;
        uint64_t seed = 1, order_bytes = 8, stored_count = 0;
        double best = 1e30;
        char order[8] = "shuffled";
        cairn_ticket ticket;

        cairn_options_init(&options, sizeof options);
        options.without_checkpoints = argc > 1 && argv[1][0] == '-';
        CHECK(cairn_open(&options, &c));
        CHECK(cairn_session(c, &session));
        CHECK(cairn_stored_count(c, &stored_count));
        if (stored_count > 0)
                CHECK(cairn_stored_tensor(c, 0, &stored));
        const char *stored_rate = cairn_stored_description(c, "config.rate");
        const char *rate = cairn_override(c, "config.rate");
        printf("libcairn %s, rank %u of %u, first stored: %s %s, rate %s\n", cairn_version(),
               session.rank, session.world, stored.name,
               stored_count ? cairn_dtype_name(stored.dtype) : "",
               stored_rate ? stored_rate : "new");

        CHECK(cairn_alloc(c, 2 * cairn_dtype_bytes(CAIRN_F32), (void **) &w));
        CHECK(cairn_alloc(c, 2 * cairn_dtype_bytes(CAIRN_F32), (void **) &m));
        CHECK(cairn_alloc(c, sizeof *step_fp32, (void **) &step_fp32));
        CHECK(add(c, "w", CAIRN_PARAMETER, w));
        CHECK(add(c, "m", CAIRN_MOMENT1, m));
        CHECK(cairn_register_step(c, "step", step_fp32, &truth));
        CHECK(cairn_state_i64(c, "samples", &samples));
        CHECK(cairn_state_u64(c, "seed", &seed));
        CHECK(cairn_state_f64(c, "best", &best));
        CHECK(cairn_state_bytes(c, "order", order, &order_bytes, sizeof order));
        CHECK(cairn_describe(c, "config.rate", rate ? rate : "0.1"));
        CHECK(cairn_seal(c));
        CHECK(cairn_restore(c, &report));
        printf("%s\n", report.text);

        for (step = report.step; step < 100 && !cairn_should_stop(c);) {
                float x = (float) (samples % 7) / 7, error = w[0] * x + w[1] - (3 * x + 1);
                CHECK(cairn_update_begin(c));
                m[0] = 0.9f * m[0] + error * x, m[1] = 0.9f * m[1] + error;
                w[0] -= 0.1f * m[0], w[1] -= 0.1f * m[1];
                best = error * error < best ? error * error : best;
                truth++, samples++;
                CHECK(cairn_update_end(c, ++step));
        }
        if (!options.without_checkpoints) {
                CHECK(cairn_snapshot(c, &ticket));
                int now = cairn_snapshot_poll(c, ticket, &committed);
                printf("the last snapshot %s (%s)\n",
                       now == 0                ? "is committed"
                       : now == CAIRN_ERR_BUSY ? "is still being written: waiting for it"
                                               : "failed",
                       cairn_status_name(now));
                CHECK(cairn_snapshot_wait(c, ticket, 60000000000, &committed));
        }
        CHECK(cairn_get_statistics(c, &statistics));
        printf("step %lld, best %g, committed %lld, seq %llu\n", (long long) step, best,
               (long long) committed, (unsigned long long) statistics.seq);
        if (step == 100)
                CHECK(cairn_finish(c, "completed"));
        cairn_close(c);
        return 0;
}
