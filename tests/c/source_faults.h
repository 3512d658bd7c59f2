/* source_faults: the rules that test_handover_source.c breaks in turn, each
 * with the function that keeps it. */
#ifndef FNET_TESTS_SOURCE_FAULTS_H
#define FNET_TESTS_SOURCE_FAULTS_H

enum fault {
    NONE,
    DETACH_DOES_NOT_WAIT,         /* fnet_shard_detach_locked */
    DROP_DOES_NOT_WAIT,           /* fnet_stream_drop */
    WAITS_BUT_DOES_NOT_SAY_SO,    /* busy_awaited, await_idle_locked */
    END_OF_OP_IS_NOT_TOLD,        /* end_op */
    EVENTS_DO_NOT_MAKE_BUSY,      /* begin_op in note_event */
    FLUSHES_DO_NOT_MAKE_BUSY,     /* begin_op in fnet_shard_flush_locked */
    READS_DO_NOT_MAKE_BUSY,       /* begin_op in read_ready */
    WAITS_BUT_LOOKS_ONCE,         /* the loop of await_idle_locked */
    DETACHED_STAYS_READY,         /* fnet_poller_detach */
    DETACHED_STAYS_DIRTY,         /* likewise */
    TAGS_OF_EVENTS_ARE_IGNORED,   /* fnet_poller_lookup in note_event */
    TAGS_OF_MAIL_ARE_IGNORED,     /* likewise in deliver_one */
    CLOSED_BEFORE_DETACHED,       /* the caller of fnet_stream_detach */
    SOURCES_ARE_NOT_GATED,        /* is_gated */
    MAIL_LAST_COME_FIRST,         /* fnet_inbox_take */
    SENDS_ON_IN_A_HURRY,          /* flush_locked */
    FLUSH_DOES_NOT_WAIT_FOR_SEND, /* flushing, fnet_shard_flush */
    FLUSH_OF_ONE_GIVEN_BACK,      /* fnet_shard_flush: phase TURN */
    GIVES_BACK_WHAT_WAS_WRITTEN,  /* fnet_shard_give_back_locked: unsent */
    GIVING_BACK_DOES_NOT_PROMPT,  /* likewise */
    GIVEN_BACK_BUT_NOT_LATE,      /* likewise */
    WRITES_ARE_NOT_DEFERRED,      /* settle_locked */
    FAULTS
};

#endif
