#define _GNU_SOURCE /* CPU_SET, syscall */
#include "pool.h"

#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How long a thread spins before it sleeps, in pauses: 20 to 100 microseconds by processor. The ops of a layer follow each
 * other within a few; a neighbour on the same core is held up no longer than that. */
#define NUM_SPINS 2000
#define MAX_THREADS 256

/* A number that threads wait on until it changes. */
typedef struct {
  _Alignas(64) _Atomic uint32_t value;
  _Atomic uint32_t num_sleepers;
} signal_word;

static struct {
  int size; /* the caller included */
  pthread_t threads[MAX_THREADS];
  int cpus[MAX_THREADS]; /* -1: not pinned */
  pthread_mutex_t caller;
  void (*body)(void *);
  void *arg;
  _Atomic bool is_stopping;
  signal_word started;  /* one up for each run */
  signal_word phase;    /* one up each time all threads have come to a barrier */
  _Alignas(64) _Atomic int num_arrived;
} pool = {.size = 1, .caller = PTHREAD_MUTEX_INITIALIZER};

static void wait_for_change(signal_word *word, uint32_t seen) {
  for (int i = 0; i < NUM_SPINS; i++) {
    if (atomic_load_explicit(&word->value, memory_order_acquire) != seen) return;
    _mm_pause();
  }
  atomic_fetch_add(&word->num_sleepers, 1);
  while (atomic_load(&word->value) == seen) /* the kernel looks once more, so that no wake-up is missed */
    syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
  atomic_fetch_sub(&word->num_sleepers, 1);
}

static void change(signal_word *word) {
  atomic_fetch_add(&word->value, 1);
  if (atomic_load(&word->num_sleepers) > 0) syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void tg_pool_barrier(void) {
  if (pool.size == 1) return;
  uint32_t seen = atomic_load_explicit(&pool.phase.value, memory_order_relaxed);
  if (atomic_fetch_add(&pool.num_arrived, 1) == pool.size - 1) {
    atomic_store_explicit(&pool.num_arrived, 0, memory_order_relaxed);
    change(&pool.phase);
  } else {
    wait_for_change(&pool.phase, seen);
  }
}

static void pin(int cpu) {
  if (cpu < 0) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof one, &one); /* a hint: where it is refused, the thread floats */
}

static void *work(void *number) {
  uint32_t seen = 0; /* a new pool starts to count from nought */
  pin(pool.cpus[(intptr_t)number]);
  for (;;) {
    wait_for_change(&pool.started, seen);
    seen++;
    if (atomic_load(&pool.is_stopping)) return NULL;
    pool.body(pool.arg);
    tg_pool_barrier();
  }
}

void tg_pool_run(void (*body)(void *arg), void *arg) {
  pthread_mutex_lock(&pool.caller);
  if (pool.size > 1) {
    pool.body = body;
    pool.arg = arg;
    change(&pool.started);
  }
  body(arg);
  tg_pool_barrier();
  pthread_mutex_unlock(&pool.caller);
}

int tg_pool_size(void) { return pool.size; }

/* A child has its parent's memory, but none of its threads. */
static void forget_threads(void) {
  pool.size = 1;
  pthread_mutex_init(&pool.caller, NULL);
}

int tg_pool_start(int num_threads, const int *cpus) {
  static bool is_registered = false;
  if (num_threads < 1 || num_threads > MAX_THREADS) return -1;
  tg_pool_stop();
  if (!is_registered) {
    pthread_atfork(NULL, NULL, forget_threads);
    is_registered = true;
  }
  atomic_store(&pool.is_stopping, false);
  atomic_store(&pool.started.value, 0);
  atomic_store(&pool.phase.value, 0);
  atomic_store(&pool.num_arrived, 0);
  for (int i = 0; i < num_threads; i++) pool.cpus[i] = cpus ? cpus[i] : -1;
  pin(pool.cpus[0]);
  int num_started = 1;
  for (; num_started < num_threads; num_started++)
    if (pthread_create(&pool.threads[num_started], NULL, work, (void *)(intptr_t)num_started) != 0) break;
  pool.size = num_started;
  if (num_started < num_threads) {
    tg_pool_stop();
    return -1;
  }
  return 0;
}

void tg_pool_stop(void) {
  pthread_mutex_lock(&pool.caller);
  if (pool.size > 1) {
    atomic_store(&pool.is_stopping, true);
    change(&pool.started);
    for (int i = 1; i < pool.size; i++) pthread_join(pool.threads[i], NULL);
    pool.size = 1;
  }
  pthread_mutex_unlock(&pool.caller);
}

/* Each thread's block begins with its size; a key's destructor frees it when the thread ends. */
#define HEADER 64

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

static void make_scratch_key(void) { pthread_key_create(&scratch_key, free); }

void *tg_pool_scratch(size_t size) {
  pthread_once(&scratch_once, make_scratch_key);
  size_t *block = pthread_getspecific(scratch_key);
  if (block == NULL || *block < size) {
    free(block);
    size_t rounded = (size + 63) / 64 * 64;
    block = aligned_alloc(64, HEADER + rounded);
    pthread_setspecific(scratch_key, block);
    if (block == NULL) return NULL;
    *block = rounded;
  }
  return (char *)block + HEADER;
}
