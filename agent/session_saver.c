/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/run.h"
#include "agent/session_parts.h"
#include "base/log.h"

#define SESSION_RESPAWN_NS_MIN (200 * NSEC_PER_MSEC)
#define SESSION_RESPAWN_NS_MAX (30 * NSEC_PER_SEC)
#define SESSION_DEATHS_MAX 5 /* of savers while the trainer waits for an answer */
#define SLABS_PER_MESSAGE 8

struct saver_message session_message(const struct session *s, enum saver_verb verb) {
        struct saver_message m = {.verb = verb,
                                  .error = CAIRN_ERROR_INIT,
                                  .generation = s->run->generation,
                                  .session_id = s->id,
                                  .seal = s->seal,
                                  .bytes = s->staging_bytes,
                                  .rank = s->rank,
                                  .world = s->run->world};
        memcpy(m.run, s->run->name, sizeof m.run);
        return m;
}

int session_send_slabs(struct session *s, uint32_t first) {
        while (first < s->slab_count) {
                struct saver_message m = session_message(s, SAVER_SLABS);
                m.first = first;
                for (; m.count < SLABS_PER_MESSAGE && first < s->slab_count; m.count++, first++) {
                        m.slab_bytes[m.count] = s->slab_bytes[first];
                        m.slab_kind[m.count] = s->slab_kinds[first];
                }
                TRY(s->agent->ops->saver_send(s, &m, s->slab_fds + m.first, m.count));
        }
        return 0;
}

int session_send_seal(struct session *s) {
        struct saver_message m = session_message(s, SAVER_SEAL);
        const int fds[] = {s->inventory_fd, s->host_fd, s->staging_fd, s->push_fd, s->pidfd};
        s->saver_sealed = false;
        s->saver.held_bytes = s->staging_bytes;
        return s->agent->ops->saver_send(s, &m, fds, s->push_fd < 0 ? 3 : 5);
}

static int send_setup(struct session *s) {
        struct saver_message m = session_message(s, SAVER_SETUP);
        m.storage_timeout_ns = s->agent->config.storage_timeout_s * NSEC_PER_SEC;
        const int fds[] = {s->page_fd, s->event_fd};
        return s->agent->ops->saver_send(s, &m, fds, 2);
}

static void decline_rings(struct session *s) {
        if (atomic_load(&s->page->wanted_seq) > atomic_load(&s->page->answered_seq))
                cut_decline(s->page, CAIRN_ERR_BUSY);
}

/* While there is no saver nobody else answers, and a gate would wait for its whole deadline. */
static void event_ready(void *context, uint32_t events) {
        struct session *s = context;
        uint64_t count;
        (void) events;
        ssize_t n = read(s->event_fd, &count, sizeof count);
        (void) n;
        decline_rings(s);
}

static void watch_rings(struct session *s, bool on) {
        if (!on) {
                loop_unwatch(&s->agent->loop, &s->event_source);
                return;
        }
        if (!s->event_source.watched)
                (void) loop_watch(&s->agent->loop, &s->event_source, s->event_fd, EPOLLIN,
                                  event_ready, s, NULL);
        decline_rings(s);
}

void session_start_saver(struct session *s) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        s->saver_ready = s->saver_sealed = s->saver_stopping = false;
        s->armed_attempt = 0;
        s->disarming = s->writing = false;
        s->respawn_ns = loop_now(&s->agent->loop);
        int r = s->agent->ops->saver_start(s, &error);
        if (r == 0)
                r = send_setup(s);
        if (r == 0)
                return;
        if (!error.status)
                (void) error_set(&error, r, "set up saver", s->run->name, "it did not take it");
        session_note_error(s, "start saver", &error);
        /* saver_ended was not called for one that did not start. */
        if (!saver_link_running(&s->saver))
                loop_timer_set(&s->agent->loop, &s->respawn_timer,
                               s->respawn_ns + SESSION_RESPAWN_NS_MAX / 8);
}

void session_fail_pending(struct session *s, const struct cairn_error *error) {
        if (s->seal_reply.connection)
                server_fail(&s->seal_reply, error);
        s->seal_reply = (struct reply_to){0};
        if (s->restore.reply.connection)
                server_fail(&s->restore.reply, error);
        s->restore.reply = (struct reply_to){0};
        s->restore.wanted = false;
        if (s->state == SESSION_SEALING)
                session_set_state(s, SESSION_WELCOMED);
        else if (s->state == SESSION_RESEALING)
                session_set_state(s, SESSION_ACTIVE);
        else if (s->state == SESSION_RESTORING)
                session_set_state(s, SESSION_SEALED);
}

void session_saver_ended(struct session *s, bool reaped, int wait_status) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        bool expected = s->saver_stopping;
        s->saver_ready = s->saver_sealed = false;
        if (!expected || !reaped) {
                s->saver_deaths++;
                (void) error_set(&error, CAIRN_ERR_PEER, "run saver", s->run->name,
                                 reaped ? "it ended with wait status %d; another one is started"
                                        : "it cannot be ended (wait status %d): it and its staging "
                                          "are abandoned",
                                 wait_status);
                session_note_error(s, "saver", &error);
        }
        if (cut_copy_revoke(s->page))
                log_event(LOG_LEVEL_WARNING, "run=%s rank=%u cut=void reason=\"saver ended\"",
                          s->run->name, s->rank);
        s->armed_attempt = 0;
        s->disarming = s->writing = s->restore.begun = false;
        run_session_saver_lost(s->run, s, &error);
        if (s->postmortem == POSTMORTEM_ORDERED)
                s->postmortem = POSTMORTEM_WANTED;
        /* Its staging may still be written to, or is half written: a new one. */
        session_close_fd(&s->staging_fd);
        if (s->state >= SESSION_SETTLING) {
                if (s->state == SESSION_SETTLING && expected) {
                        loop_timer_clear(&s->agent->loop, &s->timer);
                        s->staging_bytes = 0;
                        /* A GPU has no room for this state and its successor's at once. */
                        for (uint32_t i = 0; i < s->slab_count; i++)
                                session_close_fd(&s->slab_fds[i]);
                        session_set_state(s, SESSION_ENDED);
                        run_session_ended(s->run, s);
                        return;
                }
                run_pump(s->run);
                return;
        }
        if (s->saver_deaths > SESSION_DEATHS_MAX)
                session_fail_pending(s, &error);
        watch_rings(s, true);
        uint64_t pause = SESSION_RESPAWN_NS_MIN << (s->saver_deaths < 8 ? s->saver_deaths : 8);
        pause = pause < SESSION_RESPAWN_NS_MAX ? pause : SESSION_RESPAWN_NS_MAX;
        loop_timer_set(&s->agent->loop, &s->respawn_timer, loop_now(&s->agent->loop) + pause);
        run_pump(s->run);
}

/* Its I/O thread waits for storage that does not answer, and so may its end: nobody answers the
 * trainer until another one is there. */
static void saver_stuck(struct session *s) {
        log_event(LOG_LEVEL_WARNING, "run=%s rank=%u saver_pid=%d saver=stuck", s->run->name,
                  s->rank, (int) s->saver.pid);
        s->saver_ready = s->saver_sealed = false;
        watch_rings(s, true);
        s->agent->ops->saver_stop(s);
}

void session_hand_over(struct session *s) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        int r = s->staging_fd < 0 ? session_make_staging(s, s->staging_bytes, &error) : 0;
        if (r == 0)
                r = session_send_seal(s);
        if (r == 0) {
                s->no_room = false;
                return;
        }
        if (!error.status)
                (void) error_set(&error, r, "hand over to saver", s->run->name,
                                 "the saver took nothing");
        if (!s->no_room)
                session_note_error(s, "set up saver", &error);
        s->no_room = true;
        /* Memory that an abandoned saver still holds, say, may be free by then. */
        loop_timer_set(&s->agent->loop, &s->respawn_timer,
                       loop_now(&s->agent->loop) + SESSION_RESPAWN_NS_MAX / 8);
        if (r == CAIRN_ERR_NOMEM)
                session_seal_without_room(s);
}

/* A new saver introduced itself: hand everything over again. */
static void saver_ready(struct session *s) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        s->saver_ready = true;
        watch_rings(s, false);
        int r = session_send_slabs(s, 0);
        if (r < 0) {
                (void) error_set(&error, r, "hand over to saver", s->run->name,
                                 "the saver took nothing");
                session_note_error(s, "set up saver", &error);
        } else if (s->inventory_fd >= 0)
                session_hand_over(s);
}

void session_respawn(void *context) {
        struct session *s = context;
        if (s->state >= SESSION_SETTLING)
                return;
        if (s->saver.state == SAVER_LINK_NONE)
                session_start_saver(s);
        else if (s->saver_ready && s->no_room)
                session_hand_over(s);
}

/* What was ordered was taken or was not; that is judged anew. */
static void answered(struct session *s) {
        if (s->postmortem == POSTMORTEM_ORDERED)
                s->postmortem = POSTMORTEM_WANTED;
}

void session_saver_message(struct session *s, const struct saver_message *m, struct wire_fds *fds) {
        (void) fds;
        switch (m->verb) {
        case SAVER_READY:
                if (m->status < 0) {
                        session_note_error(s, "set up saver", &m->error);
                        s->agent->ops->saver_stop(s);
                } else
                        saver_ready(s);
                break;
        case SAVER_SEALED:
                session_saver_sealed(s, m);
                break;
        case SAVER_CUT:
                s->writing = true;
                answered(s);
                run_session_cut(s->run, s, m);
                break;
        case SAVER_HELD:
                run_session_held(s->run, s, m);
                break;
        case SAVER_VOID:
                s->take_seq = 0;
                answered(s);
                run_session_void(s->run, s, m);
                break;
        case SAVER_WRITTEN:
                s->writing = false;
                s->armed_attempt = 0;
                s->disarming = false;
                if (m->status == 0) {
                        s->saver_deaths = 0;
                        if (m->duration_ns && m->bytes)
                                s->write_rate = (uint64_t) ((__uint128_t) m->bytes * NSEC_PER_SEC /
                                                            m->duration_ns);
                }
                if (m->warned)
                        session_note_error(s, "fast path", &m->error);
                run_session_written(s->run, s, m);
                if (m->stuck)
                        saver_stuck(s);
                break;
        case SAVER_DISARMED:
                /* After the end of a write that was given up it may have other files by now. */
                if (!m->attempt || m->attempt != s->armed_attempt)
                        break;
                s->armed_attempt = 0;
                s->disarming = false;
                run_session_disarmed(s->run, s, m->attempt);
                break;
        case SAVER_PART:
                session_saver_part(s);
                break;
        case SAVER_RESTORED:
                session_saver_restored(s, m);
                if (m->stuck)
                        saver_stuck(s);
                break;
        default:
                log_event(LOG_LEVEL_WARNING, "run=%s rank=%u saver_message=%d ignored=1",
                          s->run->name, s->rank, (int) m->verb);
        }
        run_pump(s->run);
}

bool session_can_arm(const struct session *s) {
        bool alive = s->state >= SESSION_SEALED && s->state <= SESSION_RESEALING && !s->dead;
        return s->saver_sealed && !s->saver_stopping && !s->armed_attempt && !s->writing &&
               (alive || s->postmortem == POSTMORTEM_WANTED);
}

int session_arm(struct session *s, uint32_t attempt, int parcel) {
        struct saver_message m = session_message(s, SAVER_ARM);
        m.attempt = attempt;
        int r = s->agent->ops->saver_send(s, &m, &parcel, 1);
        if (r == 0) {
                s->armed_attempt = attempt;
                s->take_seq = 0;
        }
        return r;
}

void session_disarm(struct session *s) {
        struct saver_message m = session_message(s, SAVER_DISARM);
        m.attempt = s->armed_attempt;
        if (!s->armed_attempt || s->disarming)
                return;
        if (s->agent->ops->saver_send(s, &m, NULL, 0) == 0)
                s->disarming = true;
}

void session_take(struct session *s, uint64_t seq) {
        struct saver_message m = session_message(s, SAVER_TAKE);
        m.seq = seq;
        if (s->take_seq >= seq && s->take_seq)
                return;
        if (s->agent->ops->saver_send(s, &m, NULL, 0) == 0)
                s->take_seq = seq ? seq : 1;
}

int session_hold(struct session *s, int64_t step) {
        struct saver_message m = session_message(s, SAVER_TAKE);
        m.hold = true;
        m.step = step;
        s->take_seq = 0;
        return s->agent->ops->saver_send(s, &m, NULL, 0);
}

void session_go(struct session *s) {
        struct saver_message m = session_message(s, SAVER_GO);
        (void) s->agent->ops->saver_send(s, &m, NULL, 0); /* lost with its saver: void */
}

void session_release(struct session *s) {
        struct saver_message m = session_message(s, SAVER_RELEASE);
        (void) s->agent->ops->saver_send(s, &m, NULL, 0);
}

void session_take_last(struct session *s) {
        struct saver_message m = session_message(s, SAVER_TAKE);
        m.seq = cut_read(s->page).seq;
        m.ending = s->ending;
        if (s->saver.state == SAVER_LINK_NONE && !s->saver_stopping)
                session_start_saver(s);
        if (!s->armed_attempt || s->disarming || s->writing ||
            s->agent->ops->saver_send(s, &m, NULL, 0) < 0)
                return;
        s->postmortem = POSTMORTEM_ORDERED;
        s->postmortem_tries++;
}

bool session_copying(const struct session *s) {
        if (!saver_link_running(&s->saver) || !s->armed_attempt || s->disarming)
                return false;
        struct cut_word w = cut_read(s->page);
        uint64_t wanted = atomic_load(&s->page->wanted_seq);
        return w.phase == CUT_COPYING || (w.phase == CUT_STABLE && wanted <= w.seq &&
                                          wanted > atomic_load(&s->page->answered_seq));
}
