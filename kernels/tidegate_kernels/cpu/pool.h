/* One pool of threads per process: the caller's own thread and its workers share out the tasks of an op. */
#ifndef TIDEGATE_POOL_H
#define TIDEGATE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Hands out the tasks of one op; zero it before each use. In a cache line of its own, for all threads write to it. */
typedef struct {
  _Alignas(64) _Atomic int64_t next;
} tg_counter;

/* Takes up to `step` tasks of `total`: true and the half-open range [*begin, *end), or false when none are left. */
static inline bool tg_take(tg_counter *counter, int64_t step, int64_t total, int64_t *begin, int64_t *end) {
  int64_t first = atomic_fetch_add_explicit(&counter->next, step, memory_order_relaxed);
  if (first >= total) return false;
  *begin = first;
  *end = first + step < total ? first + step : total;
  return true;
}

/* As tg_take, but takes a share of what is left, in multiples of `step`: long runs first, which memory is fastest at, and
 * short ones last, so that threads end together. */
static inline bool tg_take_share(tg_counter *counter, int64_t step, int64_t total, int num_threads, int64_t *begin,
                                 int64_t *end) {
  int64_t first = atomic_load_explicit(&counter->next, memory_order_relaxed), size;
  do {
    if (first >= total) return false;
    size = (total - first) / (2 * num_threads) / step * step;
    if (size < step) size = step;
  } while (!atomic_compare_exchange_weak_explicit(&counter->next, &first, first + size, memory_order_relaxed,
                                                  memory_order_relaxed));
  *begin = first;
  *end = first + size < total ? first + size : total;
  return true;
}

int tg_pool_start(int num_threads, const int *cpus);
void tg_pool_stop(void);

/* Threads that take part in a visit, the same for its whole length: all of the pool, or fewer where they would wait for each
 * other (crew.h). */
int tg_pool_size(void);

/* Runs `body` on every thread that takes part, and returns when all have left it. */
void tg_pool_run(void (*body)(void *arg), void *arg);

/* Inside `body`: waits until every thread that takes part has come here. */
void tg_pool_barrier(void);

/* Memory of the calling thread's own, 64-byte aligned, which the next call may move; freed when the thread ends. NULL
 * where there is none left. */
void *tg_pool_scratch(size_t size);

#endif
