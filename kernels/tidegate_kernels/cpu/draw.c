/* Drawing one token of a row; see sampler_reference.py, which defines what a draw is.
 *
 * Weights are whole numbers, whose sum does not depend on the order of summing. Nothing here sorts the vocabulary: `top_k`
 * and `top_p` order the few tokens that they are sure to keep and some more. */
#include "kernels.h"
#include "log.h"
#include "rank.h"

/* The most probable token's weight, and its logarithm. */
#define WEIGHT_ONE 1099511627776.0f
#define LOG_WEIGHT_ONE 27.725887222397812
/* Tokens of a part, whose weights are summed in doubles: these hold sums of whole numbers up to 2**53 exactly. */
#define PART 1024
/* For `top_p`, bins of quotients by their distance from the largest. */
#define BINS_PER_NAT 16
#define NUM_BINS 512

typedef struct {
  float maximum, temperature; /* the maximum already divided */
} scale;

/* What a thread works in, for rows of n tokens. */
typedef struct {
  tg_entry *entries, *spare; /* [n] */
  int64_t *part_totals;      /* [ceil(n / PART)] */
  float *weights;            /* [n], and a vector's width more */
} space;

static bool find_space(int64_t n, space *found) {
  const int64_t num_parts = (n + PART - 1) / PART;
  const size_t entries_size = (size_t)n * sizeof(tg_entry), parts_size = (size_t)num_parts * sizeof(int64_t);
  char *memory = tg_pool_scratch(2 * entries_size + parts_size + (size_t)(n + 16) * sizeof(float));
  if (memory == NULL) return false;
  found->entries = (tg_entry *)memory;
  found->spare = (tg_entry *)(memory + entries_size);
  found->part_totals = (int64_t *)(memory + 2 * entries_size);
  found->weights = (float *)(memory + 2 * entries_size + parts_size);
  return true;
}

static int64_t at_most(int64_t value, int64_t limit) { return value < limit ? value : limit; }

TG_INLINE vec weights_of(vec quotients, scale by) {
  return vec_floor(vec_mul(vec_exp(vec_sub(quotients, vec_set(by.maximum))), vec_set(WEIGHT_ONE)));
}

/* Weights of x[start], and of up to 15 that follow it before n; the lanes after them weigh nothing. */
TG_INLINE vec weights_at(const float *x, int64_t start, int64_t n, scale by) {
  if (start + 16 <= n) return weights_of(vec_div(vec_load(x + start), vec_set(by.temperature)), by);
  float lanes[16];
  const int count = (int)(n - start);
  vec_store(lanes, weights_of(vec_div(vec_load_first(x + start, count), vec_set(by.temperature)), by));
  return vec_load_first(lanes, count);
}

/* The weight of the whole row, and of each part. */
static int64_t weigh_row(const float *x, int64_t n, scale by, int64_t *part_totals) {
  int64_t total = 0;
  for (int64_t part = 0; part * PART < n; part++) {
    const int64_t end = at_most((part + 1) * PART, n);
    wide sums = wide_zero();
    for (int64_t i = part * PART; i < end; i += 16) sums = wide_add(sums, weights_at(x, i, n, by));
    part_totals[part] = (int64_t)wide_sum_lanes(sums);
    total += part_totals[part];
  }
  return total;
}

/* Weights of entries, in their order. */
static void weigh_entries(const tg_entry *entries, int64_t num, scale by, float *weights) {
  for (int64_t start = 0; start < num; start += 16) {
    float quotients[16];
    for (int lane = 0; lane < 16; lane++) quotients[lane] = value_of_key(entries[at_most(start + lane, num - 1)].key);
    vec_store(weights + start, weights_of(vec_load(quotients), by));
  }
}

/* Where in the total the random number falls. */
static int64_t threshold_of(double random, int64_t total) {
  return at_most((int64_t)(random * (double)total), total - 1); /* the product may round up to the total */
}

/* How much of the total `top_p` wants before it stops to keep. */
static int64_t wanted_of(double top_p, int64_t total) {
  const double share = top_p * (double)total;
  int64_t wanted = (int64_t)share;
  if ((double)wanted < share) wanted++;
  return at_most(wanted, total); /* a total above 2**53 may round up */
}

/* Draws among all tokens in order of their ids. */
static int64_t draw_uncut(const tg_draw_row *row, int64_t n, scale by, int64_t *part_totals) {
  const int64_t threshold = threshold_of(row->random, weigh_row(row->x, n, by, part_totals));
  int64_t below = 0, part = 0;
  while (threshold >= below + part_totals[part]) below += part_totals[part++];
  for (int64_t start = part * PART;; start += 16) {
    float weights[16];
    vec_store(weights, weights_at(row->x, start, n, by));
    for (int lane = 0; lane < 16; lane++) {
      below += (int64_t)weights[lane];
      if (threshold < below) return start + lane;
    }
  }
}

/* A bound on quotients that every token with a weight which `top_p` keeps reaches. */
static float bound_of_wanted(int64_t total, int64_t wanted, int64_t n, scale by) {
  /* The tokens from the last kept one on weigh more than what is not wanted. They are n at most, and none is heavier than
   * it but for rounding. */
  const double weight = (double)(total - wanted) / (double)n - 1.0;
  const double distance = LOG_WEIGHT_ONE - (weight > 1.0 ? log_of(weight) : 0.0);
  /* Wider than any rounding: of the bound to fp32, of the difference that exp is taken of, and of exp. */
  const double margin = 1e-3 + (by.maximum < 0 ? -by.maximum : by.maximum) * 1e-6;
  return (float)((double)by.maximum - distance - margin);
}

static int bin_of(const tg_entry *entry, scale by) {
  const float bin = (by.maximum - value_of_key(entry->key)) * BINS_PER_NAT;
  return bin < NUM_BINS - 1 ? (int)bin : NUM_BINS - 1;
}

/* Drops entries after those that make up what is wanted, and may leave some more; gives the number of the others. */
static int64_t drop_unwanted(tg_entry *entries, int64_t num, int64_t wanted, scale by, float *weights) {
  int64_t bins[NUM_BINS] = {0};
  weigh_entries(entries, num, by, weights);
  for (int64_t i = 0; i < num; i++) bins[bin_of(&entries[i], by)] += (int64_t)weights[i];
  int last = 0;
  for (int64_t sum = bins[0]; sum < wanted && last < NUM_BINS - 1; sum += bins[last]) last++;
  int64_t num_left = 0;
  for (int64_t i = 0; i < num; i++)
    if (bin_of(&entries[i], by) <= last) entries[num_left++] = entries[i];
  return num_left;
}

/* Draws among the entries, which are in order and hold the first `wanted` of the weight. */
static int64_t draw_ranked(const tg_entry *ranked, const float *weights, int64_t num, int64_t wanted, double random) {
  int64_t kept = 0, below = 0;
  for (int64_t i = 0; i < num && kept < wanted; i++) kept += (int64_t)weights[i];
  const int64_t threshold = threshold_of(random, kept);
  int64_t i = 0;
  while (threshold >= below + (int64_t)weights[i]) below += (int64_t)weights[i++];
  return ranked[i].index;
}

static int64_t draw_cut(const tg_draw_row *row, int64_t n, scale by, space *own) {
  const tg_entry *ranked;
  int64_t num, total = 0, wanted;
  if (row->top_k > 0 && row->top_k < n) {
    num = row->top_k;
    ranked = rank_best(row->x, n, num, by.temperature, own->entries, own->spare);
    weigh_entries(ranked, num, by, own->weights);
    for (int64_t i = 0; i < num; i++) total += (int64_t)own->weights[i];
    wanted = wanted_of(row->top_p, total);
  } else {
    total = weigh_row(row->x, n, by, own->part_totals);
    wanted = wanted_of(row->top_p, total);
    num = collect_entries(row->x, n, by.temperature, bound_of_wanted(total, wanted, n, by), own->entries);
    num = drop_unwanted(own->entries, num, wanted, by, own->weights);
    ranked = sort_entries(own->entries, own->spare, num);
    weigh_entries(ranked, num, by, own->weights);
  }
  return draw_ranked(ranked, own->weights, num, wanted, row->random);
}

static int64_t draw(const tg_draw_row *row, int64_t n) {
  const scale by = {.maximum = row->maximum / row->temperature, .temperature = row->temperature};
  space own;
  if (!find_space(n, &own)) return TG_NO_MEMORY;
  if (row->top_k == 0 && row->top_p >= 1.0) return draw_uncut(row, n, by, own.part_totals);
  return draw_cut(row, n, by, &own);
}

void TG_NAME(draw_kernel)(const tg_draw *op, tg_counter *counter) {
  int64_t begin, end;
  while (tg_take(counter, 1, op->m, &begin, &end))
    for (int64_t row = begin; row < end; row++) op->token_ids[row] = draw(&op->rows[row], op->n);
}
