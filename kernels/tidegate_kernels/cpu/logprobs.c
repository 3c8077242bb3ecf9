/* Log-probabilities of a row: of one token, and of the best. The softmax itself is never written out. */
#include "kernels.h"
#include "log.h"
#include "rank.h"

/* Vectors whose exponentials are added in fp32, before the sum goes on in doubles. */
#define RUN 16

static vec exp_at(const float *x, int64_t start, int64_t n, vec maximum) {
  if (start + 16 <= n) return vec_exp(vec_sub(vec_load(x + start), maximum));
  float lanes[16];
  const int count = (int)(n - start);
  vec_store(lanes, vec_exp(vec_sub(vec_load_first(x + start, count), maximum)));
  return vec_load_first(lanes, count);
}

/* log(sum(exp(x))), summed in an order that only n decides. */
static double log_sum_exp(const float *x, int64_t n, float maximum) {
  wide sums = wide_zero();
  for (int64_t start = 0; start < n; start += RUN * 16) {
    const int64_t end = start + RUN * 16 < n ? start + RUN * 16 : n;
    vec run = exp_at(x, start, n, vec_set(maximum));
    for (int64_t i = start + 16; i < end; i += 16) run = vec_add(run, exp_at(x, i, n, vec_set(maximum)));
    sums = wide_add(sums, run);
  }
  return (double)maximum + log_of(wide_sum_lanes(sums));
}

static void compute(const tg_logprobs *op, int64_t index) {
  const tg_logprobs_row *row = &op->rows[index];
  const float *x = row->x;
  const double log_sum = log_sum_exp(x, op->n, row->maximum);
  op->logprobs[index] = (float)((double)x[row->token_id] - log_sum);
  if (row->num_top == 0) return;
  tg_entry *entries = tg_pool_scratch(2 * (size_t)op->n * sizeof *entries);
  if (entries == NULL) {
    op->logprobs[index] = NAN;
    return;
  }
  const tg_entry *best = rank_best(x, op->n, row->num_top, 1.0f, entries, entries + op->n);
  for (int64_t i = 0; i < row->num_top; i++) {
    op->top_ids[index * op->top_stride + i] = best[i].index;
    op->top_logprobs[index * op->top_stride + i] = (float)((double)x[best[i].index] - log_sum);
  }
}

void TG_NAME(logprobs_kernel)(const tg_logprobs *op, tg_counter *counter) {
  int64_t begin, end;
  while (tg_take(counter, 1, op->m, &begin, &end))
    for (int64_t row = begin; row < end; row++) compute(op, row);
}
