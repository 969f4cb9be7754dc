/*
 * The protocol of memlock, for spin: clients that take, refresh and release one lock, and all that
 * may happen to them and to the server in between. README.md says what this stands for and what it
 * leaves out; `run` verifies it.
 *
 * The size of the world is given by -D:
 *   ACQ_A, ACQ_B, ACQ_C  acquisitions that each client tries
 *   RENEWALS             renewals of each program; of A's keeper as well, with KEEPER
 *   FAULTS               answers waited for in vain, connections that end, errors that are hidden
 *   LOSSES               times that the server loses the record: eviction, or a restart
 *   TTL, SHORT           ticks that a lease lasts, and that a refresh may ask for instead
 *   KEEPER               client A hands its lock over to its keeper
 *   DROPS                a lock may be given up without waiting
 *   TOKENS               the fence is modelled
 * and each rule that is taken out has a -D of its own, all of them in capitals below.
 */

#ifndef ACQ_A
#define ACQ_A 1
#endif
#ifndef ACQ_B
#define ACQ_B 1
#endif
#ifndef ACQ_C
#define ACQ_C 0
#endif
#ifndef RENEWALS
#define RENEWALS 1
#endif
#ifndef RENEWALS_B
#define RENEWALS_B 0
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef TTL
#define TTL 2
#endif
#ifndef SHORT
#define SHORT TTL
#endif

#if ACQ_C > 0
#define N 3 /* clients */
#else
#define N 2
#endif
#ifdef KEEPER
#define LINKS (N + 1)
#define COPIES (N + 2) /* a lock's state: each program's, and the keeper's of two acquisitions */
#else
#define LINKS N
#define COPIES N
#endif
#define KEEPERS N          /* the link of A's keeper; copies KEEPERS and KEEPERS + 1 are its own */
#define WHO(x) ((x) * ((x) < N)) /* whose copy, and whose link: from N on they are of A, client 0 */
#define NONE 9
#define GAP 20 /* between the seqs that a program and its keeper allot */

/* What a message asks for. PROBE is a cas with an id that no item has. */
#define NOTHING 0
#define ADD 1
#define CAS 2
#define DEL 3
#define PROBE 4

/* Where a flight is: its write waits in the connection, its read waits there, its answer waits for
 * the client; or no answer will ever come. */
#define IDLE 0
#define WRITING 1
#define READING 2
#define ANSWERED 3
#define DEAD 4

/* The server's word on a write that waited for it, and the outcomes of operations. */
#define STORED 1
#define EXISTS 2
#define ABSENT 3
#define OK 1
#define LOST 2
#define UNKNOWN 3

/* The promises. Each is asserted as `holds || name`, and the name is always false: spin then shows
 * which one was broken. `hidden`: no part of the state. */
hidden byte one_holder;         /* never two holders by held() while the record is kept */
hidden byte held_is_backed;     /* held() is true: the record is in place and lasts longer */
hidden byte others_untouched;   /* no write changes another's record */
hidden byte lost_is_gone;       /* what is called lost is gone */
hidden byte lost_stays_lost;    /* what was lost is not quietly had again */
hidden byte released_is_free;   /* given up: no record, none to come, or the client knows better */
hidden byte tokens_rise;        /* an acquisition's token is above all earlier ones */
#define PROMISE(name, holds) assert((holds) || name)

/* The server. */

byte item_own = 0; /* 0: no item; else client + 1 */
byte item_id, item_seq, item_cas, item_left;
byte next_cas = 1;
byte losses = LOSSES;
byte faults = FAULTS;

/* A link: the connection that is up, with the one flight on it. */
typedef Link {
  byte epoch;
  bit up;    /* the server has not closed it */
  byte at;   /* IDLE, ... */
  byte op;
  byte id;
  byte seq;
  byte cas;
  byte ttl;
  bit reply; /* the write waits for its reply, and no read follows */
  byte pend; /* what is left of the deadline counted from just before the sending */
  /* The answer: */
  byte v_own;
  byte v_id;
  byte v_seq;
  byte v_cas;
  byte word;
  bit late;     /* the record had been lost when this left; for the promise only */
  byte removal; /* a cas to nothing that left before without reply, at this CAS id */
#ifdef TOKENS
  byte seed;
  byte order;  /* when its write ran, for the promise only */
  byte v_fence;
  bit counted; /* the fence's part of the flight has run */
  bit fence_read;
#endif
};
Link link[LINKS];
byte next_epoch[N];

/* Bytes of connections that the client has left: each may still run, at any time, or never. */
typedef Stray {
  byte op;
  byte own;
  byte id;
  byte seq;
  byte cas;
  byte ttl;
#ifdef TOKENS
  byte seed;
  bit count; /* the fence's part is still to run */
#endif
};
#define STRAYS 2
Stray stray[STRAYS];

/* A lock, as the program or the keeper has it. */
typedef Copy {
  byte id;
  byte seq;
  byte proven; /* seq of the write that was last proven to be in place */
  bit owned;
  bit giving;    /* a release went out, its outcome is unknown */
  bit unsettled; /* the id may be in place or under way: keep it */
  bit floating;  /* a renewal's outcome is unknown: the record's version may change yet */
  byte left;     /* of the lease: held() */
  byte v_cas;    /* the version of the record, and the epoch that read it */
  byte v_epoch;
};
Copy lock[COPIES];

byte ids[N];     /* the last id drawn */
byte doubt[N];   /* set of ids that may still arrive, which the client looks for */
byte told[N];    /* set of ids that were given up with "unknown" as the last word */
byte sent[N];    /* epoch of a removal that left without reply and is not covered yet */
byte sent_id[N];
bit dropped[N];  /* the server lost the record of this acquisition */
byte acq[N];
byte renewals[N];

#ifdef TOKENS
byte fence = 0;
byte clock = 1;   /* of the wall, as far as it matters: above all that the fence has been */
byte order = 0;
byte last_order = 0; /* the acquisition that came last, and its token */
byte last_token = 0;
byte fence_losses = 1;
#endif

#ifdef KEEPER
byte kept = NONE; /* the keeper's copy that counts for the program's lock, 0 or 1 */
bit kept_up;      /* the program has not given it up */
byte tenure = 0;
typedef Kept {
  bit on;
  bit adopted; /* the keeper is the writer */
  bit orphan;  /* the program has let go: give up, and forget */
  bit working;
  byte wish;   /* 0 none, 1 refresh, 2 refresh for less, 3 release */
  byte answer; /* 0 none yet */
  bit lost;
};
Kept keep[2];
byte kept_renewals = RENEWALS;
byte waiting = 0; /* the program waits for the keeper; 2: it has given that up */
#define LEFT(c) (((c) == 0 && kept != NONE) -> (kept_up -> lock[KEEPERS + kept].left : 0) : lock[c].left)
#else
#define LEFT(c) lock[c].left
#endif

#define BACKED(c) (LEFT(c) == 0 || dropped[c] || (item_own == (c) + 1 && item_left >= LEFT(c)))
#if N == 3
#define ALONE                                                                                      \
  ((LEFT(0) > 0 && !dropped[0]) + (LEFT(1) > 0 && !dropped[1]) + (LEFT(2) > 0 && !dropped[2]) <= 1)
#else
#define ALONE (!(LEFT(0) > 0 && LEFT(1) > 0) || dropped[0] || dropped[1])
#endif

inline look() {
  PROMISE(one_holder, ALONE);
  PROMISE(held_is_backed, BACKED(0));
  PROMISE(held_is_backed, BACKED(1));
#if N == 3
  PROMISE(held_is_backed, BACKED(2));
#endif
}

/* Runs one write. word: what it would be answered. */
inline perform(w_op, w_own, w_id, w_seq, w_cas, w_ttl, word_) {
  if
  :: w_op == ADD && item_own == 0 ->
     if :: !lock[(w_own) - 1].owned -> dropped[(w_own) - 1] = 0 :: else fi;
     item_own = w_own; item_id = w_id; item_seq = w_seq; item_left = w_ttl;
     item_cas = next_cas; next_cas++; word_ = STORED
  :: w_op == ADD && item_own != 0 -> word_ = EXISTS
  :: w_op != ADD && item_own == 0 -> word_ = ABSENT
  :: w_op != ADD && item_own != 0 && (w_op == PROBE || item_cas != w_cas) -> word_ = EXISTS
  :: (w_op == CAS || w_op == DEL) && item_own != 0 && item_cas == w_cas ->
     PROMISE(others_untouched, item_own == w_own);
     if
     :: w_op == DEL -> clear_item()
     :: else ->
        item_id = w_id; item_seq = w_seq; item_left = w_ttl;
        item_cas = next_cas; next_cas++
     fi;
     word_ = STORED
  fi;
  look()
}

inline clear_item() { item_own = 0; item_id = 0; item_seq = 0; item_cas = 0; item_left = 0 }

inline clear_stray(i) {
  stray[i].op = 0; stray[i].own = 0; stray[i].id = 0; stray[i].seq = 0; stray[i].cas = 0;
  stray[i].ttl = 0
#ifdef TOKENS
  ; stray[i].seed = 0; stray[i].count = 0
#endif
}

#ifdef TOKENS
/* `add` of the fence, then `incr`; or `incr` alone, of a client that has seen the fence. In the model
 * any take may do without the `add`, seen or not. */
#define UNSEEDED 255
inline count_up(seed_) {
  if
  :: fence == 0 && seed_ == UNSEEDED
  :: else ->
     if :: fence == 0 -> fence = seed_ :: else fi;
     fence++;
     if :: clock <= fence -> clock = fence + 1 :: else fi
  fi
}
#endif

/* Leaves bytes behind. With no room left for more of them, these are lost. */
inline go_astray(l, s_op, s_cas) {
  if
  :: stray[0].op == 0 -> fill_stray(0, l, s_op, s_cas)
  :: else ->
     if :: stray[1].op == 0 -> fill_stray(1, l, s_op, s_cas) :: else fi
  fi
}
inline fill_stray(i, l, s_op, s_cas) {
  stray[i].op = s_op; stray[i].own = WHO(l) + 1; stray[i].cas = s_cas;
  if
  :: s_op != DEL -> stray[i].id = link[l].id; stray[i].seq = link[l].seq; stray[i].ttl = link[l].ttl
  :: else
  fi
#ifdef TOKENS
  ; if :: s_op != DEL && link[l].seed != 0 -> stray[i].seed = link[l].seed; stray[i].count = 1
    :: else fi
#endif
}

/* Faults befall A; with FAULTS_FOR_ALL the others, too. */
#ifdef FAULTS_FOR_ALL
#define FAULT(l) (faults > 0)
#else
#define FAULT(l) (faults > 0 && WHO(l) == 0)
#endif

/* All that the server does with one link. The parts of a flight run one by one, so that those of
 * others may come between. */
#define SERVE(l)                                                                                   \
  :: d_step { link[l].removal != 0 && link[l].up ->                                                \
       perform(DEL, WHO(l) + 1, 0, 0, link[l].removal, 0, scratch);                             \
       link[l].removal = 0; scratch = 0 }                                                          \
  :: d_step { link[l].at == WRITING && link[l].removal == 0 && WRITABLE(l) ->                      \
       perform(link[l].op, WHO(l) + 1, link[l].id, link[l].seq, link[l].cas, link[l].ttl,       \
               link[l].word);                                                                      \
       ORDER(l);                                                                                  \
       link[l].at = (link[l].reply -> ANSWERED : READING) }                                        \
  :: d_step { link[l].at == WRITING && link[l].removal == 0 && !link[l].reply &&                   \
              link[l].op != NOTHING && FAULT(l) ->                                               \
       faults--; link[l].at = READING } /* it refused, and nobody wanted to hear it */             \
  COUNT(l)                                                                                         \
  :: d_step { link[l].at == READING && READY(l) ->                                                 \
       link[l].v_own = item_own; link[l].v_id = item_id; link[l].v_seq = item_seq;                 \
       link[l].v_cas = item_cas; link[l].at = ANSWERED }                                           \
  :: d_step { link[l].at == READING && READY(l) && item_own != 0 && FAULT(l) ->                  \
       faults--; link[l].at = ANSWERED } /* an error that looks like absence */                    \
  :: d_step { link[l].up && FAULT(l) && link[l].at != ANSWERED &&                                \
              (link[l].at != IDLE || lock[WHO(l)].owned) ->                                        \
       faults--; link[l].up = 0; link[l].removal = 0;                                              \
       if :: link[l].at != IDLE -> link[l].at = DEAD :: else fi }                                  \
  :: d_step { link[l].at != IDLE && link[l].at != DEAD && FAULT(l) ->                            \
       faults--; /* no answer in time: what the server has not read yet may still arrive */        \
       if                                                                                          \
       :: link[l].removal != 0 -> go_astray(l, DEL, link[l].removal); link[l].removal = 0          \
       :: else                                                                                     \
       fi;                                                                                         \
       if                                                                                          \
       :: link[l].at == WRITING && link[l].op != PROBE -> go_astray(l, link[l].op, link[l].cas)    \
       :: else                                                                                     \
       fi;                                                                                         \
       link[l].at = DEAD }

#ifdef TOKENS
#define ORDER(l) if :: link[l].word == STORED -> order++; link[l].order = order :: else fi
#define FENCE_PART(l) (link[l].op == ADD || link[l].op == CAS)
#ifdef FENCE_FIRST /* broken on purpose: counted before the add */
#define WRITABLE(l) (link[l].seed == 0 || link[l].counted)
#define COUNT(l)                                                                                   \
  :: d_step { link[l].at == WRITING && FENCE_PART(l) && link[l].seed != 0 && !link[l].counted ->   \
       count_up(link[l].seed); link[l].counted = 1 }                                                  \
  :: d_step { link[l].at == READING && link[l].counted && !link[l].fence_read ->                   \
       link[l].v_fence = fence; link[l].fence_read = 1 }
#else
#define WRITABLE(l) true
#define COUNT(l)                                                                                   \
  :: d_step { link[l].at == READING && link[l].seed != 0 && !link[l].counted ->                    \
       count_up(link[l].seed); link[l].counted = 1 }                                                  \
  :: d_step { link[l].at == READING && link[l].counted && !link[l].fence_read ->                   \
       link[l].v_fence = fence; link[l].fence_read = 1 }
#endif
#define READY(l) (link[l].removal == 0 && (link[l].seed == 0 || link[l].fence_read))
#else
#define ORDER(l) skip
#define COUNT(l)
#define WRITABLE(l) true
#define READY(l) (link[l].removal == 0)
#endif

#define STRAY(i)                                                                                   \
  :: d_step { stray[i].op != 0 ->                                                                  \
       perform(stray[i].op, stray[i].own, stray[i].id, stray[i].seq, stray[i].cas,              \
               stray[i].ttl, scratch);                                                             \
       STRAY_COUNT(i);                                                                             \
       clear_stray(i); scratch = 0 }                                                               \
  :: d_step { stray[i].op != 0 -> clear_stray(i) } /* lost on the way */

#ifdef TOKENS
#define STRAY_COUNT(i)                                                                             \
  if                                                                                               \
  :: stray[i].count -> if :: scratch == STORED -> order++ :: else fi; count_up(stray[i].seed)         \
  :: else                                                                                          \
  fi
#else
#define STRAY_COUNT(i) skip
#endif

inline tick1(x) { if :: x > 0 -> x-- :: else fi }

inline lose_item() {
  if
  :: item_own != 0 -> dropped[item_own - 1] = 1; clear_item()
  :: else
  fi
}

inline break_link(l) {
  link[l].up = 0; link[l].removal = 0;
  if
  :: link[l].at != IDLE && link[l].at != ANSWERED -> link[l].at = DEAD
  :: else
  fi
}

#ifdef TOKENS
#define LOSE_FENCE fence = 0
#ifdef OLD_SEEDS /* what is not promised: see README.md */
#define NO_OLD_SEED true
#else
#define NO_OLD_SEED                                                                                \
  (!SEEDS(stray[0]) && !SEEDS(stray[1]) && (!SEEDS(link[0]) || link[0].counted) &&                 \
   (!SEEDS(link[1]) || link[1].counted))
#define SEEDS(x) (x.seed != 0 && x.seed != UNSEEDED)
#endif
#else
#define LOSE_FENCE skip
#endif

#define TICK_LINK(l) tick1(link[l].pend)
#define TICK_COPY(x) tick1(lock[x].left)
#if COPIES == 5
#define TICK_COPIES TICK_COPY(2); TICK_COPY(3); TICK_COPY(4)
#define COPIES_COUNT (lock[2].left + lock[3].left + lock[4].left)
#elif COPIES == 4
#define TICK_COPIES TICK_COPY(2); TICK_COPY(3)
#define COPIES_COUNT (lock[2].left + lock[3].left)
#elif COPIES == 3
#define TICK_COPIES TICK_COPY(2)
#define COPIES_COUNT lock[2].left
#else
#define TICK_COPIES skip
#define COPIES_COUNT 0
#endif
#if LINKS == 4
#define TICK_LINKS TICK_LINK(2); TICK_LINK(3)
#define LINKS_COUNT (link[2].pend + link[3].pend)
#define BREAK_LINKS break_link(2); break_link(3)
#elif LINKS == 3
#define TICK_LINKS TICK_LINK(2)
#define LINKS_COUNT link[2].pend
#define BREAK_LINKS break_link(2)
#else
#define TICK_LINKS skip
#define LINKS_COUNT 0
#define BREAK_LINKS skip
#endif
#define TICK_ALL TICK_LINK(0); TICK_LINK(1); TICK_LINKS; TICK_COPY(0); TICK_COPY(1); TICK_COPIES
#define ANYBODY_COUNTS                                                                             \
  (lock[0].left + lock[1].left + COPIES_COUNT + link[0].pend + link[1].pend + LINKS_COUNT > 0)
#define BREAK_ALL break_link(0); break_link(1); BREAK_LINKS

active proctype server() {
  byte scratch = 0;
end:
  do
  SERVE(0)
  SERVE(1)
#if LINKS > 2
  SERVE(2)
#endif
#if LINKS > 3
  SERVE(3)
#endif
  STRAY(0)
  STRAY(1)

  /* Time: a tick for the server's clock and for everybody else's. */
  :: d_step { item_left > 0 ->
       item_left--;
       if :: item_left == 0 -> clear_item() :: else fi;
       TICK_ALL;
       look() }
  :: d_step { item_left == 0 && ANYBODY_COUNTS -> TICK_ALL; look() }

  :: d_step { losses > 0 && item_own != 0 -> losses--; lose_item() } /* evicted, flushed */
  :: d_step { losses > 0 && next_cas > 1 -> /* restarted */
       losses--; lose_item(); next_cas = 1;
       clear_stray(0); clear_stray(1);
       BREAK_ALL;
       LOSE_FENCE }
#ifdef KEEPER
  :: d_step { waiting == 1 && faults > 0 -> faults--; waiting = 2 }
#endif
#ifdef TOKENS
  :: d_step { fence_losses > 0 && fence != 0 && NO_OLD_SEED -> fence_losses--; LOSE_FENCE }
#endif
  od
}

/* The store. */

inline clear_flight(l) {
  link[l].at = IDLE; link[l].op = NOTHING; link[l].id = 0; link[l].seq = 0; link[l].cas = 0;
  link[l].ttl = 0; link[l].reply = 0; link[l].v_own = 0; link[l].v_id = 0; link[l].v_seq = 0;
  link[l].v_cas = 0; link[l].word = 0; link[l].late = 0
#ifdef TOKENS
  ; link[l].seed = 0; link[l].order = 0; link[l].v_fence = 0; link[l].counted = 0;
  link[l].fence_read = 0
#endif
}

inline new_epoch(l) {
#ifdef SHARED_EPOCHS /* each store counts for itself, from 1 */
  link[l].epoch++
#else
  next_epoch[WHO(l)]++; link[l].epoch = next_epoch[WHO(l)]
#endif
}

/* Leaves the connection. What the server has not read of it yet may still arrive. */
inline drop(l) {
  if
  :: link[l].removal != 0 && link[l].up -> go_astray(l, DEL, link[l].removal)
  :: else
  fi;
  link[l].removal = 0;
  clear_flight(l);
  link[l].up = 1;
  new_epoch(l);
  /* A removal that was sent is not covered by what another connection says. */
  if
  :: l < N && sent[WHO(l)] != 0 ->
     doubt[WHO(l)] = doubt[WHO(l)] | (1 << sent_id[WHO(l)]); sent[WHO(l)] = 0; sent_id[WHO(l)] = 0
  :: else
  fi
}

#ifdef NO_EPOCHS
#define CURRENT(x, l) (lock[x].v_cas != 0)
#else
#define CURRENT(x, l) (lock[x].v_cas != 0 && lock[x].v_epoch == link[l].epoch)
#endif

#ifdef TOKENS
#define SEED(l, want) link[l].seed = (want == 1 -> clock : (want == 2 -> UNSEEDED : 0))
#ifdef ALL_SEEDED /* for fewer states */
#define CHOOSE_SEED skip
#else
#define CHOOSE_SEED if :: seeding = 1 :: !gone -> seeding = 2 fi
#endif
#else
#define SEED(l, want) skip
#define CHOOSE_SEED skip
#endif

/* Sends. */
inline send(l, w_op, w_id, w_seq, w_cas, w_ttl, w_reply, taking) {
  link[l].op = w_op; link[l].id = w_id; link[l].seq = w_seq; link[l].cas = w_cas;
  link[l].ttl = w_ttl; link[l].reply = w_reply; SEED(l, taking);
  link[l].at = (link[l].up -> (w_op == NOTHING -> READING : WRITING) : DEAD)
}

/* Waits. went: an answer came; else the connection was left. All that a client does between two
 * waits is one step: nobody can see it halfway. */
inline hear(l) {
  if
  :: link[l].at == ANSWERED -> went = 1; cover(l)
  :: link[l].at == DEAD -> went = 0; drop(l)
  fi
}

/* An answer covers all that left before it on its connection. */
inline cover(l) {
  if
  :: l < N && sent[WHO(l)] == link[l].epoch && sent[WHO(l)] != 0 ->
     sent[WHO(l)] = 0; sent_id[WHO(l)] = 0
  :: else
  fi
}

#define OURS(x, l) (link[l].v_own == WHO(x) + 1 && link[l].v_id == lock[x].id)
#define THIS_WRITE(x, l) (OURS(x, l) && link[l].v_seq == wrote)
#ifdef OLD_RECORD_STANDS /* a record of ours is ours, even one older than what we last proved */
#define STANDS(x, l) OURS(x, l)
#else
#define STANDS(x, l) (OURS(x, l) && link[l].v_seq >= lock[x].proven)
#endif

#ifdef SEQ_FROM_RECORD
#define NEXT_SEQ(x) lock[x].proven + 1
#else
#define NEXT_SEQ(x) lock[x].seq + 1
#endif

#ifdef DEADLINE_AFTER_SEND
#define DEADLINE(l, t) t
#else
#define DEADLINE(l, t) link[l].pend
#endif

/* The lock. Copy x, by way of link l. Each leaves its outcome in `res`. */

inline forget(x) {
  lock[x].owned = 0; lock[x].giving = 0; lock[x].unsettled = 0; lock[x].left = 0;
  lock[x].v_cas = 0; lock[x].v_epoch = 0; lock[x].floating = 0; lock[x].proven = 0
}

inline raise(x, l, t) {
#ifdef NO_TENURE /* whoever has the lock by now */
  lock[((x) >= N -> ((kept == NONE) -> 0 : KEEPERS + kept) : (x))].left = DEADLINE(l, t)
#else
  lock[x].left = DEADLINE(l, t)
#endif
}

/* The server's word on what a read did not show: `word` ABSENT, EXISTS, or 0 for none. */
inline ask_again(x, l) {
#ifdef BELIEVE_ABSENCE
  word = ABSENT
#else
  clear_flight(l); send(l, PROBE, 0, 0, 0, 0, 1, 0);
  hear(l);
  word = (went -> link[l].word : 0);
    if :: went -> clear_flight(l) :: else fi
#endif
}

inline lose(x) {
  /* With an add of ours in doubt, our record may have come back meanwhile. */
  PROMISE(lost_is_gone, !(item_own == WHO(x) + 1 && item_id == lock[x].id && item_seq >=
          lock[x].proven) || (doubt[WHO(x)] & (1 << lock[x].id)));
  forget(x);
  res = LOST
}

#ifdef SEQ_FROM_RECORD
#define LEARN(x, l) lock[x].proven = link[l].v_seq
#else
#define LEARN(x, l) skip
#endif

/* Takes an answer that shows the record: keeps its version where it stands. */
inline judge(x, l) {
  if
  :: STANDS(x, l) ->
       lock[x].v_cas = link[l].v_cas; lock[x].v_epoch = link[l].epoch; LEARN(x, l);
       res = OK; clear_flight(l)
  :: link[l].v_own == 0 -> clear_flight(l);
     ask_again(x, l);
     if
       :: word == ABSENT -> lose(x)
       :: else -> res = UNKNOWN
       fi;
       word = 0
  :: link[l].v_own != 0 && !STANDS(x, l) -> clear_flight(l); lose(x)
  fi
}

inline refresh(x, l, w_ttl) {
  tries = 0;
  res = UNKNOWN;
  do
  :: tries < 3 && res == UNKNOWN && lock[x].left > 0;
     /* Another connection: read again, and see whether the record is ours. */
     if
     :: CURRENT(x, l) -> res = OK
     :: else ->
        send(l, NOTHING, 0, 0, 0, 0, 0, 0);
        hear(l);
        if
        :: went -> judge(x, l)
        :: else
        fi
     fi;
     if
     :: res == OK ->
        res = UNKNOWN;
          lock[x].seq = NEXT_SEQ(x);
          wrote = lock[x].seq;
          link[l].pend = w_ttl;
#ifndef NO_LOWER_DEADLINE
          if
          :: lock[x].left > w_ttl -> lock[x].left = w_ttl
          :: else
          fi;
#endif
          lock[x].floating = 1;
          link[l].late = dropped[WHO(x)];
          send(l, CAS, lock[x].id, wrote, lock[x].v_cas, w_ttl, tries == 2, 0);
        hear(l);
        if
        :: !went -> skip
        :: went && tries < 2 ->
           if
           :: THIS_WRITE(x, l) ->
                lock[x].v_cas = link[l].v_cas; lock[x].v_epoch = link[l].epoch;
                prove(x, l, w_ttl)
           :: !THIS_WRITE(x, l);
              judge(x, l);
              if :: res == OK -> res = UNKNOWN :: else fi
           fi
        :: went && tries == 2 ->
           lock[x].v_cas = 0; lock[x].v_epoch = 0;
             word = link[l].word;
             if
             :: word == STORED -> prove(x, l, w_ttl)
             :: word == ABSENT -> clear_flight(l); lose(x)
             :: word == EXISTS -> clear_flight(l)
             fi;
             word = 0
        fi;
        link[l].pend = 0; wrote = 0
     :: else
     fi;
     tries++
  :: else -> tries = 0; break
  od
}

inline prove(x, l, w_ttl) {
  PROMISE(lost_stays_lost, !link[l].late);
  raise(x, l, w_ttl);
  lock[x].proven = wrote; lock[x].floating = 0;
  clear_flight(l);
  res = OK;
  look()
}

/* Is the item that a read showed to be removed? By id: that of the copy, or with `swept` any that
 * is in doubt. */
#define IS_TARGET(x, l, swept)                                                                     \
  (link[l].v_own == WHO(x) + 1 &&                                                                  \
   (swept -> ((doubt[WHO(x)] & (1 << link[l].v_id)) != 0) : link[l].v_id == lock[x].id))

/* Read, compare, compare-and-swap to nothing. res: OK: it is not there; else UNKNOWN. */
inline remove(x, l, swept) {
  tries = 0;
  res = UNKNOWN;
  do
  :: tries < 3 && res == UNKNOWN -> send(l, NOTHING, 0, 0, 0, 0, 0, 0);
     hear(l);
     if
     :: !went
     :: went && link[l].v_own == 0 -> clear_flight(l);
        ask_again(x, l);
        if :: word == ABSENT -> res = OK :: else fi; word = 0
     :: went && link[l].v_own != 0 && !IS_TARGET(x, l, swept) ->
          clear_flight(l); res = OK
     :: went && IS_TARGET(x, l, swept) ->
          word = link[l].v_cas; clear_flight(l); send(l, DEL, 0, 0, word, 0, 1, 0); word = 0;
        hear(l);
        if
          :: went -> if :: link[l].word == STORED -> res = OK :: else fi; clear_flight(l)
          :: else
          fi
     fi;
     tries++
  :: else -> tries = 0; break
  od
}

inline release(x, l) {
  #ifndef HELD_UNTIL_RELEASED
    lock[x].left = 0;
#endif
    lock[x].owned = 0; lock[x].giving = 1;
    res = UNKNOWN; word = 0;
  if
  :: CURRENT(x, l) ->
     send(l, DEL, 0, 0, lock[x].v_cas, 0, 1, 0);
     hear(l);
     word = (went -> link[l].word : 0);
       if :: went -> clear_flight(l) :: else fi
  :: else
  fi;
  lock[x].v_cas = 0; lock[x].v_epoch = 0; if :: word == STORED || word == ABSENT -> res = OK :: else fi; word = 0;
  if
  :: res == UNKNOWN -> remove(x, l, 0)
  :: else
  fi;
  if
    :: res == OK -> forget(x)
    :: else ->
       lock[x].left = 0; lock[x].unsettled = 1;
       if :: x < N -> doubt[WHO(x)] = doubt[WHO(x)] | (1 << lock[x].id) :: else fi
    fi
}

#ifdef COVERED_ANYHOW /* even while a renewal that is under way may change the version */
#define COVERABLE(x) ((doubt[x] & (1 << lock[x].id)) == 0)
#else
#define COVERABLE(x) ((doubt[x] & (1 << lock[x].id)) == 0 && !lock[x].floating)
#endif

/* Gives up without waiting: the removal leaves where its connection is up. `covered`: an answer
 * that follows it is to be proof of it. */
inline drop_lock(x, l) {
  if
    :: CURRENT(x, l) && link[l].up ->
       link[l].removal = lock[x].v_cas;
       if
       :: COVERABLE(x) -> sent[x] = link[l].epoch; sent_id[x] = lock[x].id
       :: else -> doubt[x] = doubt[x] | (1 << lock[x].id)
       fi
    :: CURRENT(x, l) && !link[l].up -> /* into a connection that has ended */
       sent[x] = link[l].epoch; sent_id[x] = lock[x].id
    :: else -> doubt[x] = doubt[x] | (1 << lock[x].id)
    fi;
    forget(x)
}

#ifdef TOKENS
#define TOKEN(l)                                                                                   \
  if                                                                                               \
  :: link[l].order > last_order ->                                                                 \
     PROMISE(tokens_rise, link[l].v_fence > last_token);                                           \
     last_order = link[l].order; last_token = link[l].v_fence                                      \
  :: else -> PROMISE(tokens_rise, link[l].v_fence < last_token)                                    \
  fi
#else
#define TOKEN(l) skip
#endif

#ifdef TOKENS
#define UNSEEN(l) (link[l].v_fence == 0 && link[l].seed == UNSEEDED && link[l].v_own != 0)
#ifdef NO_COUNTER_NEEDED /* what shows the record is believed, though it shows no fence */
#define FENCE_GONE(l) false
#define FENCE_MISSING(l) (link[l].v_fence == 0 && !UNSEEN(l))
#else
#define FENCE_GONE(l) UNSEEN(l)
#define FENCE_MISSING(l) (link[l].v_fence == 0)
#endif
#else
#define FENCE_MISSING(l) false
#define FENCE_GONE(l) false
#endif

/* One attempt to take the lock. */
inline acquire(x, l) {
  if :: lock[x].owned -> lock[x].unsettled = 1 :: else fi;
    lock[x].owned = 0; lock[x].giving = 0; lock[x].left = 0;
    if
    :: !lock[x].unsettled -> ids[x]++; lock[x].id = ids[x]
    :: else
    fi;
    lock[x].floating = 0; lock[x].proven = 0;
    tries = 0; flights = 0; word = 0;
    res = UNKNOWN;
  do
  :: tries < 3 && flights < 4 && res == UNKNOWN ->
       lock[x].seq = NEXT_SEQ(x); wrote = lock[x].seq;
       link[l].pend = TTL;
       CHOOSE_SEED;
       send(l, (word == 0 -> ADD : CAS), lock[x].id, wrote, word, TTL, 0, seeding);
       word = 0;
     hear(l);
     if
       :: went && FENCE_GONE(l) -> /* since it was seen: the next flight seeds it */
          gone = 1;
          if
          :: OURS(x, l) -> word = link[l].v_cas; clear_flight(l); tries++
          :: !OURS(x, l) -> clear_flight(l); gone = 0; res = LOST
          fi
       :: went && FENCE_MISSING(l) && !FENCE_GONE(l) -> /* just counted: without it nothing is believed */
          doubt[x] = doubt[x] | (1 << lock[x].id); clear_flight(l); drop(l); tries++
       :: !went -> doubt[x] = doubt[x] | (1 << lock[x].id); tries++
       :: went && !FENCE_MISSING(l) ->
          if
          :: THIS_WRITE(x, l) ->
             if
             :: DEADLINE(l, TTL) > 0 ->
                raise(x, l, TTL);
                lock[x].owned = 1; lock[x].unsettled = 0; lock[x].proven = wrote;
                lock[x].v_cas = link[l].v_cas; lock[x].v_epoch = link[l].epoch;
                TOKEN(l);
                res = OK
             :: else -> /* answered when the lease was over */
                doubt[x] = doubt[x] | (1 << lock[x].id); res = LOST
             fi;
             clear_flight(l)
          :: OURS(x, l) && !THIS_WRITE(x, l) -> /* from another try: take it over */
             word = link[l].v_cas; clear_flight(l)
          :: link[l].v_own == 0 -> /* the write may be on its way */
             doubt[x] = doubt[x] | (1 << lock[x].id); clear_flight(l); drop(l); tries++
          :: link[l].v_own != 0 && !OURS(x, l) -> clear_flight(l); res = LOST
          fi
       fi;
       link[l].pend = 0; wrote = 0; flights++;
       look()
  :: else -> if
       :: res != OK && gone -> doubt[x] = doubt[x] | (1 << lock[x].id) /* its record stands there */
       :: else
       fi;
       if
       :: res != OK -> lock[x].unsettled =
            (lock[x].unsettled || (doubt[x] & (1 << lock[x].id)) != 0);
       :: else
       fi;
       tries = 0; flights = 0; word = 0; gone = 0; seeding = 1; break
  od
}


/* An add of this client that may still come. */
#define ADD_ASTRAY(c)                                                                              \
  ((stray[0].op == ADD && stray[0].own == (c) + 1) || (stray[1].op == ADD && stray[1].own == (c) + 1))

/* Does the client account for a record with this id? */
#ifdef KEEPER
#define KEPT_HAS(c, i)                                                                             \
  ((c) == 0 && ((keep[0].on && lock[KEEPERS].id == (i)) || (keep[1].on && lock[KEEPERS + 1].id == (i))))
#else
#define KEPT_HAS(c, i) false
#endif
#define KNOWN(c, i)                                                                                \
  (((lock[c].owned || lock[c].giving || lock[c].unsettled) && lock[c].id == (i)) ||                \
   (doubt[c] & (1 << (i))) || (told[c] & (1 << (i))) || (sent[c] != 0 && sent_id[c] == (i)) ||     \
   KEPT_HAS(c, i))
#define ADD_KNOWN(c, s) (stray[s].op != ADD || stray[s].own != (c) + 1 || KNOWN(c, stray[s].id))

inline settle_up(c) {
  res = 0;
  PROMISE(released_is_free, item_own != (c) + 1 || KNOWN(c, item_id));
  PROMISE(released_is_free, ADD_KNOWN(c, 0) && ADD_KNOWN(c, 1))
}

/* Looks for records in doubt. The last look is one that begins when no add is on its way any more:
 * how long that is, the client can only assume. */
inline sweep(c) {
  quiet = !ADD_ASTRAY(c);
  remove(c, c, 1);
  if
    :: res == OK && quiet -> doubt[c] = 0
    :: else
    fi;
    quiet = 0
}

/* The programs. A program that has no keeper, or whose keeper has not begun to write. */

#ifdef KEEPER
#define MINE(c) ((c) != 0 || kept == NONE)
#else
#define MINE(c) true
#endif

#define LOCALS byte res = 0, word = 0, wrote = 0, tries = 0, flights = 0, seeding = 1; \
  bit went = 0, gone = 0

#ifdef KEEPER
/* The acquisition becomes the keeper's to renew. The lock is copied as it is, its version too: what
 * says that this is of no use on the keeper's connection is the epoch. (The code forgets it, too.) */
inline hand_over() {
  kept = tenure % 2;
  tenure = (tenure + 1) % 2;
  keep[kept].on = 1;
  lock[KEEPERS + kept].id = lock[0].id;
  lock[KEEPERS + kept].seq = lock[0].seq;
  lock[KEEPERS + kept].proven = lock[0].proven;
  lock[KEEPERS + kept].owned = 1;
  lock[KEEPERS + kept].left = lock[0].left;
  lock[KEEPERS + kept].v_cas = lock[0].v_cas;
  lock[KEEPERS + kept].v_epoch = lock[0].v_epoch;
  kept_up = 1;
  lock[0].left = 0;
  lock[0].seq = lock[0].seq + GAP
}

inline clear_kept(k) {
  keep[k].on = 0; keep[k].adopted = 0; keep[k].orphan = 0; keep[k].working = 0;
  keep[k].wish = 0; keep[k].answer = 0; keep[k].lost = 0;
  forget(KEEPERS + k); lock[KEEPERS + k].id = 0; lock[KEEPERS + k].seq = 0
}

/* Ends the keeper's part. `left`: its record may still be there. */
inline end_keeping() {
  word = (lock[KEEPERS + kept].owned || lock[KEEPERS + kept].giving || lock[KEEPERS + kept].unsettled);
  clear_kept(kept);
  forget(0);
  lock[0].unsettled = word;
  kept = NONE; kept_up = 0; word = 0
}

inline await() {
  waiting = 1;
  if
  :: keep[kept].lost -> keep[kept].wish = 0; end_keeping()
  :: !keep[kept].lost && keep[kept].answer != 0 ->
     if :: keep[kept].answer == LOST -> end_keeping() :: else fi
  :: waiting == 2 && !keep[kept].lost && keep[kept].answer == 0 -> /* no answer in time */
     if :: keep[kept].wish < 3 && !keep[kept].working -> keep[kept].wish = 0 :: else fi
  fi;
  waiting = 0
}

inline with_keeper() {
  if
  /* The keeper has not begun: the lock comes back. */
  :: !keep[kept].adopted && !keep[kept].lost && !keep[kept].wish ->
     lock[0].left = lock[KEEPERS + kept].left;
     clear_kept(kept); kept = NONE; kept_up = 0;
     if
     :: lock[0].left > 0 -> release(0, 0)
     :: else
     fi
#ifdef TWO_WRITERS /* the program writes as well, on its own connection */
  :: keep[kept].adopted && !keep[kept].lost && kept_up && LEFT(0) > 0 && renewals[0] > 0 ->
     renewals[0]--;
     lock[0].left = lock[KEEPERS + kept].left;
     refresh(0, 0, SHORT);
     if
     :: res == OK -> lock[KEEPERS + kept].left = lock[0].left
     :: else
     fi;
     lock[0].left = 0
#else
  /* A refresh, for which the keeper is asked. */
  :: kept_up && !keep[kept].wish && !keep[kept].working && !keep[kept].lost && LEFT(0) > 0 &&
     renewals[0] > 0 ->
     renewals[0]--;
     keep[kept].answer = 0;
     if
     :: keep[kept].wish = 1
#if SHORT < TTL
     :: keep[kept].wish = 2
#endif
     fi;
     await()
#endif
  /* A release: held() is false before the keeper is asked. */
  :: keep[kept].adopted && !keep[kept].wish && !keep[kept].lost &&
     !(lock[0].giving && keep[kept].working) ->
#ifndef HELD_UNTIL_RELEASED
     kept_up = 0;
#endif
     lock[0].owned = 0; lock[0].giving = 1;
     keep[kept].answer = 0;
     keep[kept].wish = 3;
     await();
     if
     :: kept != NONE && keep[kept].answer == OK -> end_keeping()
     :: else -> kept_up = 0
     fi
  /* The keeper told of a loss. */
  :: keep[kept].lost -> end_keeping()
  /* Before the object acquires again, all that the keeper does for it must be over. */
  :: LEFT(0) == 0 && !keep[kept].working && !keep[kept].wish && acq[0] > 0 -> end_keeping()
#ifdef DROPS
  /* Let go without waiting; the object may acquire again at once. */
  :: keep[kept].adopted && !keep[1 - kept].on ->
     keep[kept].orphan = 1; kept = NONE; kept_up = 0; forget(0)
#endif
  fi
}

#endif

proctype program(byte c) {
  LOCALS;
  bit quiet = 0;
end:
  do
  :: atomic { acq[c] > 0 && !lock[c].owned && MINE(c) ->
       acq[c]--;
       acquire(c, c);
#ifdef KEEPER
       if :: c == 0 && res == OK -> hand_over() :: else fi;
#endif
       settle_up(c) }
  :: atomic { lock[c].owned && LEFT(c) > 0 && renewals[c] > 0 && MINE(c) ->
       renewals[c]--;
       if
       :: refresh(c, c, TTL)
#if SHORT < TTL
       :: refresh(c, c, SHORT)
#endif
       fi;
       settle_up(c) }
  :: atomic { lock[c].owned && LEFT(c) > 0 && MINE(c) -> release(c, c); settle_up(c) }
  /* A release that is tried again, or of a lease that ended by the clock. */
  :: atomic { MINE(c) && (lock[c].giving || (lock[c].owned && lock[c].left == 0)) ->
       remove(c, c, 0);
       if
       :: res == OK -> forget(c)
       :: else -> lock[c].owned = 0; lock[c].giving = 0; lock[c].unsettled = 1
       fi;
       settle_up(c) }
#ifdef DROPS
  :: atomic { lock[c].owned && MINE(c) -> drop_lock(c, c); settle_up(c) }
  :: atomic { sent[c] != 0 -> /* whatever it asks next */
       send(c, NOTHING, 0, 0, 0, 0, 0, 0);
       hear(c);
       if :: went -> clear_flight(c) :: else fi;
       settle_up(c) }
#endif
  :: atomic { doubt[c] != 0 && !lock[c].owned && MINE(c) -> sweep(c); settle_up(c) }
#ifdef KEEPER
  :: atomic { c == 0 && kept != NONE -> with_keeper(); settle_up(0) }
#endif
  od
}

#ifdef KEEPER
#define DUE(k)                                                                                     \
  (keep[k].on && !keep[k].orphan && !keep[k].lost && !keep[k].wish && lock[KEEPERS + k].owned)

#define WANTED(k)                                                                                  \
  (keep[k].on && !keep[k].lost &&                                                                  \
   (keep[k].orphan || keep[k].wish != 0 || (DUE(k) && (lock[KEEPERS + k].left == 0 || kept_renewals > 0))))

proctype keeper() {
  LOCALS;
  byte k = 0, wish = 0;
  bit asked = 0;
end:
  do
  :: atomic {
       if
       :: WANTED(0) -> k = 0
       :: WANTED(1) -> k = 1
       fi;
       if
       :: keep[k].orphan -> wish = 4
       :: !keep[k].orphan && keep[k].wish != 0 ->
          wish = keep[k].wish; asked = 1; keep[k].wish = 0
       :: DUE(k) && lock[KEEPERS + k].left > 0 && kept_renewals > 0 -> kept_renewals--; wish = 1
       :: DUE(k) && lock[KEEPERS + k].left == 0 -> wish = 5
       fi;
       if :: wish < 4 -> keep[k].adopted = 1 :: else fi;
       keep[k].working = 1;
       if
       :: wish == 1 -> refresh(KEEPERS + k, KEEPERS, TTL)
       :: wish == 2 -> refresh(KEEPERS + k, KEEPERS, SHORT)
       :: wish == 3 -> release(KEEPERS + k, KEEPERS)
       :: wish == 4 -> remove(KEEPERS + k, KEEPERS, 0)
       :: wish == 5 -> /* not renewed in time: its record may live a little longer */
          forget(KEEPERS + k); lock[KEEPERS + k].unsettled = 1; res = LOST
       fi;
       keep[k].working = 0;
       if
       :: wish == 4 ->
          if :: res != OK -> told[0] = told[0] | (1 << lock[KEEPERS + k].id) :: else fi;
          clear_kept(k)
       :: wish != 4 && keep[k].orphan /* it was let go meanwhile */
       :: wish != 4 && !keep[k].orphan && res == LOST && wish != 3 ->
          keep[k].lost = 1; keep[k].wish = 0
       :: wish != 4 && !keep[k].orphan && !(res == LOST && wish != 3) ->
          if
          :: asked && keep[k].wish == 0 -> keep[k].answer = res
          :: else /* something else is wanted meanwhile */
          fi
       fi;
       res = 0; wish = 0; asked = 0; k = 0 }
  od
}
#endif

init {
  atomic {
    acq[0] = ACQ_A; acq[1] = ACQ_B;
    renewals[0] = RENEWALS; renewals[1] = RENEWALS_B;
#if N == 3
    acq[2] = ACQ_C;
    renewals[2] = RENEWALS_B;
    link[2].epoch = 1; link[2].up = 1; next_epoch[2] = 1;
    run program(2);
#endif
    link[0].epoch = 1; link[0].up = 1; next_epoch[0] = 1;
    link[1].epoch = 1; link[1].up = 1; next_epoch[1] = 1;
#ifdef KEEPER
#ifdef SHARED_EPOCHS
    link[KEEPERS].epoch = 1;
#else
    link[KEEPERS].epoch = 2; next_epoch[0] = 2;
#endif
    link[KEEPERS].up = 1;
    run keeper();
#endif
    run program(0);
    run program(1)
  }
}
