#define _GNU_SOURCE /* CPU_SET, syscall */
#include "pool.h"

#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "crew.h"

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
  int cpus[MAX_THREADS]; /* one for each thread while all take part; -1: they float */
  pthread_mutex_t caller;
  void (*body)(void *);
  void *arg;
  _Atomic bool is_stopping;
  tg_crew crew;   /* changes between visits only */
  bool is_pinned; /* how the caller's thread is */
  signal_word started[MAX_THREADS]; /* of each worker, one up for each visit that it takes part in */
  signal_word phase;                /* one up each time all that take part have come to a barrier */
  _Alignas(64) _Atomic int num_arrived;
  _Alignas(64) _Atomic int64_t slept_ns; /* at barriers, all threads together */
} pool = {.size = 1, .crew = {.size = 1, .active = 1}, .caller = PTHREAD_MUTEX_INITIALIZER};

static int64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Gives how long it slept, in nanoseconds: 0 where the change came while it was spinning. */
static int64_t wait_for_change(signal_word *word, uint32_t seen) {
  for (int i = 0; i < NUM_SPINS; i++) {
    if (atomic_load_explicit(&word->value, memory_order_acquire) != seen) return 0;
    _mm_pause();
  }
  const int64_t begin_ns = clock_ns();
  atomic_fetch_add(&word->num_sleepers, 1);
  while (atomic_load(&word->value) == seen) /* the kernel looks once more, so that no wake-up is missed */
    syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
  atomic_fetch_sub(&word->num_sleepers, 1);
  return clock_ns() - begin_ns;
}

static void change(signal_word *word) {
  atomic_fetch_add(&word->value, 1);
  if (atomic_load(&word->num_sleepers) > 0) syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void tg_pool_barrier(void) {
  const int num_threads = pool.crew.active; /* read before this thread comes: after the last has, it may change */
  if (num_threads == 1) return;
  uint32_t seen = atomic_load_explicit(&pool.phase.value, memory_order_relaxed);
  if (atomic_fetch_add(&pool.num_arrived, 1) == num_threads - 1) {
    atomic_store_explicit(&pool.num_arrived, 0, memory_order_relaxed);
    change(&pool.phase);
  } else {
    const int64_t slept_ns = wait_for_change(&pool.phase, seen);
    if (slept_ns > 0) atomic_fetch_add_explicit(&pool.slept_ns, slept_ns, memory_order_relaxed);
  }
}

/* Keeps the calling thread on its own CPU while all take part. Fewer go wherever the neighbours leave room: on one CPU
 * each they might share one with a neighbour, while that of a thread that rests stands idle. */
static void place(int number, bool is_pinned) {
  if (pool.cpus[number] < 0) return;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (int i = 0; i < pool.size; i++)
    if (!is_pinned || i == number) CPU_SET(pool.cpus[i], &cpus);
  sched_setaffinity(0, sizeof cpus, &cpus); /* a hint: where it is refused, the thread floats */
}

static void *work(void *argument) {
  const int number = (int)(intptr_t)argument;
  uint32_t seen = 0; /* a new pool starts to count from nought */
  bool is_pinned = false;
  for (;;) {
    wait_for_change(&pool.started[number], seen);
    seen++;
    if (atomic_load(&pool.is_stopping)) return NULL;
    if (is_pinned != pool.is_pinned) place(number, is_pinned = pool.is_pinned);
    pool.body(pool.arg);
    tg_pool_barrier();
  }
}

static void visit(void (*body)(void *arg), void *arg) {
  const bool is_pinned = pool.crew.active == pool.size;
  if (is_pinned != pool.is_pinned) place(0, pool.is_pinned = is_pinned);
  pool.body = body;
  pool.arg = arg;
  const int64_t begin_ns = clock_ns();
  for (int i = 1; i < pool.crew.active; i++) change(&pool.started[i]);
  body(arg);
  tg_pool_barrier();
  const int64_t now_ns = clock_ns();
  /* What a thread slept at the last barrier may come a visit late. */
  tg_crew_note(&pool.crew, now_ns, now_ns - begin_ns, atomic_exchange_explicit(&pool.slept_ns, 0, memory_order_relaxed));
}

void tg_pool_run(void (*body)(void *arg), void *arg) {
  pthread_mutex_lock(&pool.caller);
  if (pool.size > 1) visit(body, arg);
  else body(arg);
  pthread_mutex_unlock(&pool.caller);
}

int tg_pool_size(void) { return pool.crew.active; }

/* A child has its parent's memory, but none of its threads. */
static void forget_threads(void) {
  pool.size = 1;
  pool.crew = tg_crew_of(1);
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
  for (int i = 0; i < num_threads; i++) atomic_store(&pool.started[i].value, 0);
  atomic_store(&pool.phase.value, 0);
  atomic_store(&pool.num_arrived, 0);
  for (int i = 0; i < num_threads; i++) pool.cpus[i] = cpus ? cpus[i] : -1;
  pool.is_pinned = false;
  int num_started = 1;
  for (; num_started < num_threads; num_started++)
    if (pthread_create(&pool.threads[num_started], NULL, work, (void *)(intptr_t)num_started) != 0) break;
  pool.size = num_started;
  pool.crew = tg_crew_of(num_started);
  if (num_started < num_threads) {
    tg_pool_stop();
    return -1;
  }
  place(0, pool.is_pinned = true);
  return 0;
}

void tg_pool_stop(void) {
  pthread_mutex_lock(&pool.caller);
  if (pool.size > 1) {
    atomic_store(&pool.is_stopping, true);
    for (int i = 1; i < pool.size; i++) change(&pool.started[i]);
    for (int i = 1; i < pool.size; i++) pthread_join(pool.threads[i], NULL);
    pool.size = 1;
    pool.crew = tg_crew_of(1);
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
