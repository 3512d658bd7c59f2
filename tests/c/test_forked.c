/* Forks while a worker is in the middle of its passes: the child lets go of
 * everything, whatever the worker was doing. */

#include "lent.h"

/* What the loop does in a child, and when it is closed there. */
static void
let_go(lent *l, end *e, int count)
{
    fnet_shardset_after_fork(&l->set);
    fnet_depot_forget(l->set.depot);
    for (int i = 0; i < count; i++) {
        end_detach(&e[i]);
    }
    for (unsigned i = 0; i < l->set.count; i++) {
        fnet_shard *shard = l->set.members[i].shard;
        CHECK(fnet_list_empty(&shard->ready) &&
              fnet_list_empty(&shard->dirty));
        CHECK(fnet_list_empty(&shard->gated) && shard->busy == NULL);
        CHECK(!fnet_shard_lent(shard) && shard->poller.attached == 0);
    }
}

static void
while_a_worker_is_busy(void)
{
    enum { ENDS = 4, FORKS = 60 };
    lent l;
    end e[ENDS];
    size_t sent[ENDS] = {0};
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    for (int i = 0; i < ENDS; i++) {
        end_open(&e[i], shard, i % 2 == 1);
        fnet_stream_want(&e[i].s, true);
    }
    for (int k = 0; k < FORKS; k++) {
        for (int i = 0; i < ENDS; i++) {
            sent[i] += world_send(e[i].peer, sent[i], 1 + (size_t)k * 50);
            (void)end_write(&e[i], 1000);
        }
        pid_t pid = test_fork_quietly();
        if (pid == 0) {
            atomic_store(&test_broken, 0); /* those of the parent */
            let_go(&l, e, ENDS);
            _exit(atomic_load(&test_broken) == 0 ? 7 : 1);
        }
        CHECK(pid > 0);
        int status = test_wait(pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        for (int i = 0; i < ENDS; i++) {
            LENT_MEANWHILE(&l, end_all_taken(&e[i]));
        }
    }
    for (int i = 0; i < ENDS; i++) {
        LENT_UNTIL(&l, e[i].got == sent[i]);
        end_close(&e[i]);
    }
    lent_fini(&l);
}

int
main(void)
{
    RUN(while_a_worker_is_busy);
    return test_report();
}
