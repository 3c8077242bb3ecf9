#include "crew.h"

/* Time of visits that a judgement takes. With 50 ms, what others do for a moment made a thread rest for longer than they
 * needed its CPU: 18.3 steps of 16 requests a second on a quiet machine instead of 19.8. */
#define WINDOW_NS (200 * 1000000LL)
/* Pauses before a try; each that fails doubles the next. A try costs a window at about the speed of the smaller crew. */
#define MIN_PAUSE_NS (200 * 1000000LL)
#define MAX_PAUSE_NS (3200 * 1000000LL)

tg_crew tg_crew_of(int size) { return (tg_crew){.size = size, .active = size, .pause_ns = MIN_PAUSE_NS}; }

static void begin_window(tg_crew *crew) { crew->visits_ns = crew->lost_ns = 0; }

/* Of n threads that each lose a share w, (1 - w) n are left; without one of them and undisturbed, n - 1. A thread is given
 * up a little before that is more, for what it gives up is of use to the neighbour. */
static bool loses_too_much(const tg_crew *crew) {
  return crew->active > 1 && 10 * crew->lost_ns * crew->active > 9 * crew->visits_ns * (crew->active - 1);
}

void tg_crew_note(tg_crew *crew, int64_t now_ns, int64_t visit_ns, int64_t lost_ns) {
  crew->visits_ns += visit_ns;
  crew->lost_ns += lost_ns;
  if (crew->visits_ns >= WINDOW_NS) {
    if (loses_too_much(crew)) {
      crew->active--;
      crew->pause_ns = !crew->is_trying ? MIN_PAUSE_NS : crew->pause_ns < MAX_PAUSE_NS ? 2 * crew->pause_ns : MAX_PAUSE_NS;
      crew->retry_at_ns = now_ns + crew->pause_ns;
    }
    crew->is_trying = false;
    begin_window(crew);
  }
  if (crew->active < crew->size && !crew->is_trying && now_ns >= crew->retry_at_ns) {
    crew->active++;
    crew->is_trying = true;
    begin_window(crew);
  }
}
