/* The first index of each row's maximum: what greedy decoding draws. */
#include <math.h>

#include "kernels.h"
#include "simd.h"

/* Numbers searched together: the vectors find the part that holds the maximum, then it is looked through one by one. */
#define PART 1024

static float part_maximum(const float *x, int64_t n, bool *has_nan) {
  float maximum = -INFINITY;
  int64_t i = 0;
  if (n >= 16) {
    vec most = vec_load(x);
    bool nan = vec_any_nan(most);
    for (i = 16; i + 16 <= n; i += 16) {
      vec v = vec_load(x + i);
      nan |= vec_any_nan(v);
      most = vec_max(most, v);
    }
    maximum = vec_max_lanes(most);
    *has_nan |= nan;
  }
  for (; i < n; i++) {
    *has_nan |= isnan(x[i]);
    if (x[i] > maximum) maximum = x[i];
  }
  return maximum;
}

static void search(const float *x, int64_t n, int64_t *index, float *maximum) {
  bool has_nan = false;
  int64_t best = 0;
  float most = -INFINITY;
  for (int64_t start = 0; start < n; start += PART) {
    float here = part_maximum(x + start, n - start < PART ? n - start : PART, &has_nan);
    if (here > most) {
      most = here;
      best = start;
    }
  }
  while (best < n - 1 && x[best] != most && !has_nan) best++;
  *index = best;
  *maximum = has_nan ? NAN : most;
}

void TG_NAME(argmax_kernel)(const tg_argmax *op, tg_counter *counter) {
  int64_t begin, end;
  while (tg_take(counter, 1, op->m, &begin, &end))
    for (int64_t row = begin; row < end; row++)
      search(op->x + row * op->x_stride, op->n, op->index + row, op->maximum + row);
}
