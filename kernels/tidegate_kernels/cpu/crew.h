/* How many of the pool's threads take part: all, as long as they do not wait for each other.
 *
 * Threads meet after every op, some 250 times a step. Where a neighbour holds the CPU of one, all others wait for it at each
 * meeting: beside one busy process on two cores, two threads computed half as much as undisturbed while a quarter of the
 * machine stood idle (38 decode steps a second instead of 80). So the crew gives up a thread, and the CPU with it, once
 * the others lose more by waiting than it adds, and tries again from time to time.
 *
 * Decides only; `pool.c` does. A result never depends on the number of threads. */
#ifndef TIDEGATE_CREW_H
#define TIDEGATE_CREW_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
  int size;   /* of the pool */
  int active; /* threads that take part in the next visit, 1 to size */
  int64_t visits_ns, lost_ns; /* since the last judgement: how long visits took, and how long threads slept in them */
  int64_t pause_ns;           /* how long to do with one less before it is tried again */
  int64_t retry_at_ns;
  bool is_trying; /* the last thread was added as a try */
} tg_crew;

/* All threads take part. */
tg_crew tg_crew_of(int size);

/* Takes in one visit and decides on the next.
 *
 * now_ns: of a clock that never goes back. lost_ns: what the threads slept at meetings in the visit, added up. */
void tg_crew_note(tg_crew *crew, int64_t now_ns, int64_t visit_ns, int64_t lost_ns);

#endif
