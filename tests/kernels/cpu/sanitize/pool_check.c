/* Holds the pool's threads together while their number changes, and the crew's decisions against cases.
 *
 * Includes the pool's source, to change from outside what only a busy neighbour changes. */
#include "pool.c" /* first: it says which of the system's functions it wants */

#include <stdio.h>

#define MS 1000000LL
#define EXPECT(condition)                                                      \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);          \
      return 1;                                                                \
    }                                                                          \
  } while (0)

/* --- The crew: values in, a decision out ------------------------------------------------------------------------------- */

typedef struct {
  tg_crew crew;
  int64_t now_ns;
} machine;

/* Visits of 10 ms in which the threads sleep a share of the time, until one window is full. */
static int window(machine *on, int percent_lost) {
  for (int i = 0; i < 20; i++) {
    on->now_ns += 10 * MS;
    tg_crew_note(&on->crew, on->now_ns, 10 * MS, 10 * MS * (on->crew.active - 1) * percent_lost / 100);
  }
  return on->crew.active;
}

static int undisturbed_threads_all_take_part(void) {
  machine on = {tg_crew_of(4), 0};
  for (int i = 0; i < 100; i++) EXPECT(window(&on, 5) == 4);
  return 0;
}

static int a_thread_is_given_up_once_it_costs_more_than_it_adds(void) {
  machine two = {tg_crew_of(2), 0}, two_more = {tg_crew_of(2), 0}, eight = {tg_crew_of(8), 0};
  EXPECT(window(&two, 35) == 2); /* two at 65 % are more than one */
  EXPECT(window(&two_more, 50) == 1);
  EXPECT(window(&eight, 50) == 7); /* of eight one is but an eighth */
  return 0;
}

static int a_short_disturbance_is_no_reason(void) {
  machine on = {tg_crew_of(2), 0};
  for (int i = 0; i < 7; i++) tg_crew_note(&on.crew, on.now_ns += 10 * MS, 10 * MS, 9 * MS);
  EXPECT(on.crew.active == 2);
  EXPECT(window(&on, 0) == 2);
  return 0;
}

static int an_only_thread_stays(void) {
  machine on = {tg_crew_of(1), 0};
  for (int i = 0; i < 10; i++) EXPECT(window(&on, 100) == 1);
  return 0;
}

static int a_neighbour_that_stays_is_tried_less_and_less_often(void) {
  machine on = {tg_crew_of(2), 0};
  int num_tries = 0, num_windows = 0;
  for (bool was_two = true; on.now_ns < 80000 * MS; num_windows++) {
    const bool is_two = window(&on, on.crew.active == 2 ? 50 : 0) == 2;
    num_tries += is_two && !was_two;
    was_two = is_two;
  }
  EXPECT(num_tries >= 8);                    /* one is not given up on */
  EXPECT(num_tries * 14 <= num_windows + 100); /* but costs little */
  return 0;
}

static int all_take_part_again_when_the_neighbour_has_gone(void) {
  machine on = {tg_crew_of(4), 0};
  for (int i = 0; i < 400; i++) window(&on, on.crew.active > 1 ? 80 : 0);
  EXPECT(on.crew.active <= 2);
  const int64_t gone_ns = on.now_ns;
  while (window(&on, 0) < 4) EXPECT(on.now_ns - gone_ns < 10000 * MS);
  for (int i = 0; i < 100; i++) EXPECT(window(&on, 0) == 4);
  return 0;
}

/* --- The pool: each thread that takes part runs every phase with the others, and no other does ----------------------------- */

enum { NUM_THREADS = 4, NUM_PHASES = 3, NUM_VISITS = 2000, NUM_TASKS = 64 };

typedef struct {
  tg_counter counters[NUM_PHASES];
  _Atomic int num_inside, num_ahead;
  int done[NUM_PHASES][NUM_TASKS]; /* not atomic: a race would be found */
} visit_state;

static void body(void *argument) {
  visit_state *state = argument;
  atomic_fetch_add(&state->num_inside, 1);
  for (int phase = 0; phase < NUM_PHASES; phase++) {
    int64_t begin, end;
    while (tg_take_share(&state->counters[phase], 2, NUM_TASKS, tg_pool_size(), &begin, &end))
      for (; begin < end; begin++)
        /* What another thread did in the phase before can be read after the barrier. */
        state->done[phase][begin] = phase == 0 ? 1 : state->done[phase - 1][NUM_TASKS - 1 - begin] + 1;
    tg_pool_barrier();
    for (int i = 0; i < NUM_TASKS; i++)
      if (state->done[phase][i] != phase + 1) atomic_fetch_add(&state->num_ahead, 1);
  }
}

static int threads_keep_together_while_their_number_changes(const int *cpus) {
  EXPECT(tg_pool_start(NUM_THREADS, cpus) == 0);
  for (int i = 0; i < NUM_VISITS; i++) {
    visit_state state = {0};
    const int active = 1 + (i * 7 / 3) % NUM_THREADS;
    pool.crew.active = active;
    tg_pool_run(body, &state);
    EXPECT(state.num_inside == active && state.num_ahead == 0);
    EXPECT(state.done[NUM_PHASES - 1][0] == NUM_PHASES);
  }
  tg_pool_stop();
  EXPECT(tg_pool_size() == 1);
  return 0;
}

static int num_allowed_cpus(void) {
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : -1;
}

/* The first two CPUs of this process, or -1 where it has but one. */
static int first_two(int *cpus) {
  cpu_set_t allowed;
  int found = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return -1;
  for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
    if (CPU_ISSET(i, &allowed)) cpus[found++] = i;
  return found == 2 ? 0 : -1;
}

static int threads_have_a_cpu_each_only_while_all_take_part(void) {
  int cpus[2];
  if (first_two(cpus) != 0) return 0;
  visit_state state = {0};
  EXPECT(tg_pool_start(2, cpus) == 0);
  EXPECT(num_allowed_cpus() == 1);
  for (int active = 2; active >= 1; active--) {
    state = (visit_state){0};
    pool.crew.active = active;
    pool.crew.retry_at_ns = INT64_MAX;
    tg_pool_run(body, &state);
    EXPECT(num_allowed_cpus() == (active == 2 ? 1 : 2));
  }
  tg_pool_stop();
  return 0;
}

int main(void) {
  int cpus[NUM_THREADS] = {0};
  if (undisturbed_threads_all_take_part()) return 1;
  if (a_thread_is_given_up_once_it_costs_more_than_it_adds()) return 1;
  if (a_short_disturbance_is_no_reason()) return 1;
  if (an_only_thread_stays()) return 1;
  if (a_neighbour_that_stays_is_tried_less_and_less_often()) return 1;
  if (all_take_part_again_when_the_neighbour_has_gone()) return 1;
  if (threads_have_a_cpu_each_only_while_all_take_part()) return 1;
  if (threads_keep_together_while_their_number_changes(NULL)) return 1;
  if (first_two(cpus) == 0) {
    cpus[2] = cpus[0], cpus[3] = cpus[1];
    if (threads_keep_together_while_their_number_changes(cpus)) return 1;
  }
  puts("sound");
  return 0;
}
