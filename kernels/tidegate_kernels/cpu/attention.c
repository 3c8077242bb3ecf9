/* Attention of a step's new tokens to the paged cache, prompts and decodes mixed; see paged_attention_reference.py.
 *
 * What gives a row (a query and a head) its bits, and what every path here keeps to:
 * - a score sums over head_dim in ascending order, one key a lane;
 * - a span of TG_SPAN keys gives a maximum, a total and a weighted sum. The total is summed in 16 lanes, key i of the
 *   span in lane i % 16, and then over the lanes; the weighted sum takes the keys in ascending order;
 * - spans merge in ascending order.
 * A key that a row may not see has a weight of 0, which changes no sum. So a row is the same in any tile or chunk, in
 * any batch, on any thread, and with any block size.
 *
 * A task is a tile: some queries of one request, with the query heads of one KV head. One request's keys are not shared
 * out among threads: a single long decode keeps no more threads busy than the model has KV heads.
 */
#include <math.h>

#include "kernels.h"
#include "simd.h"

#define MAX_HEAD_DIM 256
/* Rows of a tile: heads of a group times queries. A larger group is split. */
#define TILE_ROWS 64
/* Rows whose sums are in registers together. */
#define BLOCK_ROWS 6
#define MAX_WIDTH 4
#define SPAN_VECS (TG_SPAN / 16)
/* Rows in scratch are this far apart: one cache line more than a power of two, or they would share few cache sets. */
#define ROW_STRIDE (TG_SPAN + 16)

#define HIDDEN (-1e30f)
/* Exponents below are raised to it: exp(-80) vanishes beside exp(0), and no product with it is subnormal and slow. */
#define LEAST_EXPONENT (-80.0f)

/* Vectors of keys, or of head_dim, that go with `rows` rows, so that the sums and what they need fit the registers. */
#ifdef __AVX512F__
#define WIDTH(rows) 4
#else
#define WIDTH(rows) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)
#endif

/* Read at 16 - n, the lanes from n on see; read at 32 - n, the lanes before n see. */
#define SIXTEEN(x) x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x
static const float highest[48] = {SIXTEEN(HIDDEN), SIXTEEN(INFINITY), SIXTEEN(HIDDEN)};
static const float factor[48] = {SIXTEEN(0.0f), SIXTEEN(1.0f), SIXTEEN(0.0f)};

/* The scratch of a thread; 0.4 MB, of which a model touches what its head_dim needs. */
typedef struct {
  float query[TILE_ROWS][ROW_STRIDE];    /* scaled */
  float weighted[TILE_ROWS][ROW_STRIDE]; /* of the spans so far, as are maximum and total */
  float maximum[TILE_ROWS], total[TILE_ROWS];
  float weights[BLOCK_ROWS][ROW_STRIDE]; /* scores, then weights, of one span */
  float packed[TG_SPAN * MAX_HEAD_DIM];  /* keys of a span, fp32 [16 keys together][head_dim][16] */
  /* Where the span's keys and values lie: each 16 keys, and each run of neighbouring values; after the last of them,
   * what is read next. */
  const void *keys[SPAN_VECS + MAX_WIDTH], *values[TG_SPAN + 1];
} scratch;

static _Thread_local _Alignas(64) scratch own;

/* Queries `first` to `first + num_queries` of a request, with heads of one KV head. */
typedef struct {
  const int32_t *block_table;
  int64_t token;    /* of the first query */
  int64_t position; /* of the first query */
  int kv_head, q_head, num_heads, num_queries;
} tile;

TG_INLINE vec load(const void *p, int64_t i, int dtype) {
  return dtype == TG_BF16 ? vec_load_bf16((const uint16_t *)p + i) : vec_load((const float *)p + i);
}
TG_INLINE vec load_first(const void *p, int64_t i, int count, int dtype) {
  return dtype == TG_BF16 ? vec_load_bf16_first((const uint16_t *)p + i, count)
                          : vec_load_first((const float *)p + i, count);
}
TG_INLINE const void *at(const void *p, int64_t i, int dtype) {
  return dtype == TG_BF16 ? (const void *)((const uint16_t *)p + i) : (const void *)((const float *)p + i);
}
TG_INLINE int clamp(int64_t x, int high) { return x < 0 ? 0 : x > high ? high : (int)x; }

/* Scores of `rows` rows with `width` vectors of keys.
 *
 * Meanwhile it asks for the vectors after them, as weigh_tile does with the values: blocks lie apart, and the
 * processor's own prefetching starts anew in each. With 64 decodes at 300 keys, 9 query and 3 KV heads of 64, and one
 * thread of a Sapphire Rapids, fp32 took 3.3 ms a layer without and 2.9 ms with it, bfloat16 2.5 and 2.1 ms; memory
 * then gives what it can. */
TG_INLINE void score_tile(int rows, int width, const float *query, const void *const *keys, int64_t key_stride,
                          int head_dim, float *scores, int dtype) {
  vec sums[BLOCK_ROWS][MAX_WIDTH];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int v = 0; v < width; v++) sums[r][v] = vec_zero();
  for (int d = 0; d < head_dim; d++) {
    vec key[MAX_WIDTH];
#pragma GCC unroll 8
    for (int v = 0; v < width; v++) {
      key[v] = load(keys[v], d * key_stride, dtype);
      _mm_prefetch(at(keys[width + v], d * key_stride, dtype), _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      vec q = vec_set(query[r * ROW_STRIDE + d]);
#pragma GCC unroll 8
      for (int v = 0; v < width; v++) sums[r][v] = vec_fma(q, key[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int v = 0; v < width; v++) vec_store(scores + r * ROW_STRIDE + v * 16, sums[r][v]);
}

/* Scores of `rows` rows with the span's vectors of keys [begin, end). */
TG_INLINE void score_rows(int rows, const float *query, int64_t key_stride, int head_dim, int begin, int end,
                          int dtype) {
  const int width = WIDTH(rows);
  int v = begin;
  for (; v + width <= end; v += width)
    score_tile(rows, width, query, own.keys + v, key_stride, head_dim, own.weights[0] + v * 16, dtype);
  if (width > 2 && v + 2 <= end) {
    score_tile(rows, 2, query, own.keys + v, key_stride, head_dim, own.weights[0] + v * 16, dtype);
    v += 2;
  }
  if (width > 1 && v < end)
    score_tile(rows, 1, query, own.keys + v, key_stride, head_dim, own.weights[0] + v * 16, dtype);
}

/* Weighted sums of the span's keys [begin, end) for `width` vectors of head_dim, merged with those of the spans before.
 * `last` lanes of a single vector are there; the others are not read. */
TG_INLINE void weigh_tile(int rows, int width, int last, int begin, int end, int run_bits, int head_dim, int64_t dim,
                          float *weighted, const float *keep, const float *take, int dtype) {
  vec sums[BLOCK_ROWS][MAX_WIDTH];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int v = 0; v < width; v++) sums[r][v] = vec_zero();
  const int in_run = (1 << run_bits) - 1;
  const int64_t first = dim + (int64_t)(begin & in_run) * head_dim;
  const void *values = at(own.values[begin >> run_bits], first, dtype);
  const void *next = at(own.values[(begin >> run_bits) + 1], first, dtype);
  /* One loop, not one over runs and one inside: with two, the compiler keeps the sums in memory between them. */
  for (int key = begin; key < end; key++) {
    if ((key & in_run) == 0) {
      values = at(own.values[key >> run_bits], dim, dtype);
      next = at(own.values[(key >> run_bits) + 1], dim, dtype);
    }
    vec value[MAX_WIDTH];
#pragma GCC unroll 8
    for (int v = 0; v < width; v++) {
      value[v] = last < 16 ? load_first(values, v * 16, last, dtype) : load(values, v * 16, dtype);
      _mm_prefetch(at(next, v * 16, dtype), _MM_HINT_T0);
    }
    values = at(values, head_dim, dtype);
    next = at(next, head_dim, dtype);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      vec w = vec_set(own.weights[r][key]);
#pragma GCC unroll 8
      for (int v = 0; v < width; v++) sums[r][v] = vec_fma(w, value[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
    if (take[r] == 0.0f) continue; /* saw none of the span */
#pragma GCC unroll 8
    for (int v = 0; v < width; v++) {
      float *sum = weighted + r * ROW_STRIDE + dim + v * 16;
      /* A weight of 0 makes -0 a 0; adding 0 does so for every row, whatever keys its neighbours see. */
      vec later = vec_mul(vec_add(sums[r][v], vec_zero()), vec_set(take[r]));
      vec_store(sum, vec_add(vec_mul(vec_load(sum), vec_set(keep[r])), later));
    }
  }
}

TG_INLINE void weigh_rows(int rows, int begin, int end, int run_bits, int head_dim, float *weighted, const float *keep,
                          const float *take, int dtype) {
  const int width = WIDTH(rows);
  int dim = 0;
  for (; dim + width * 16 <= head_dim; dim += width * 16)
    weigh_tile(rows, width, 16, begin, end, run_bits, head_dim, dim, weighted, keep, take, dtype);
  if (width > 2 && dim + 32 <= head_dim) {
    weigh_tile(rows, 2, 16, begin, end, run_bits, head_dim, dim, weighted, keep, take, dtype);
    dim += 32;
  }
  if (width > 1 && dim + 16 <= head_dim) {
    weigh_tile(rows, 1, 16, begin, end, run_bits, head_dim, dim, weighted, keep, take, dtype);
    dim += 16;
  }
  if (dim < head_dim)
    weigh_tile(rows, 1, head_dim - dim, begin, end, run_bits, head_dim, dim, weighted, keep, take, dtype);
}

static void score(int rows, const float *query, int64_t key_stride, int head_dim, int begin, int end, int dtype) {
#define CASE(n)                                                                            \
  case n:                                                                                  \
    if (dtype == TG_BF16) score_rows(n, query, key_stride, head_dim, begin, end, TG_BF16); \
    else score_rows(n, query, key_stride, head_dim, begin, end, TG_F32);                   \
    break;
  switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
}

static void weigh(int rows, int begin, int end, int run_bits, int head_dim, float *weighted, const float *keep,
                  const float *take, int dtype) {
#define CASE(n)                                                                                             \
  case n:                                                                                                   \
    if (dtype == TG_BF16) weigh_rows(n, begin, end, run_bits, head_dim, weighted, keep, take, TG_BF16);     \
    else weigh_rows(n, begin, end, run_bits, head_dim, weighted, keep, take, TG_F32);                       \
    break;
  switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
}

/* tanh, from Lambert's continued fraction for half the argument: tanh(2h) = 2t / (1 + t * t) with t = tanh(h). From 9
 * on, tanh is 1 to within fp32's last place; NaN stays NaN. */
TG_INLINE vec vec_tanh(vec x) {
  vec h = vec_mul(vec_min(vec_set(9.0f), vec_max(vec_set(-9.0f), x)), vec_set(0.5f));
  vec square = vec_mul(h, h);
  vec p = vec_fma(square, vec_add(square, vec_set(378.0f)), vec_set(17325.0f));
  p = vec_mul(h, vec_fma(square, p, vec_set(135135.0f)));
  vec q = vec_fma(square, vec_fma(square, vec_set(28.0f), vec_set(3150.0f)), vec_set(62370.0f));
  q = vec_fma(square, q, vec_set(135135.0f));
  return vec_div(vec_mul(vec_mul(vec_set(2.0f), p), q), vec_fma(p, p, vec_mul(q, q)));
}

/* Turns a row's scores in the vectors [begin, end) into weights; it sees the span's keys [low, high). */
static void weigh_scores(float *row, int begin, int end, int low, int high, float soft_cap, float *maximum,
                         float *total) {
  vec most = vec_set(HIDDEN);
  for (int v = begin; v < end; v++) {
    vec x = vec_load(row + v * 16);
    if (soft_cap > 0.0f) x = vec_mul(vec_set(soft_cap), vec_tanh(vec_div(x, vec_set(soft_cap))));
    const int first = clamp(low - v * 16, 16), past = clamp(high - v * 16, 16);
    if (first > 0 || past < 16) {
      /* The score is the first operand: where a stale key made it NaN, the minimum is the second. */
      x = vec_min(x, vec_load(highest + 16 - first));
      x = vec_min(x, vec_load(highest + 32 - past));
    }
    vec_store(row + v * 16, x);
    most = vec_max(most, x);
  }
  *maximum = vec_max_lanes(most);
  const vec shift = vec_set(*maximum);
  vec sums = vec_zero();
  for (int v = begin; v < end; v++) {
    vec x = vec_exp(vec_max(vec_set(LEAST_EXPONENT), vec_sub(vec_load(row + v * 16), shift)));
    const int first = clamp(low - v * 16, 16), past = clamp(high - v * 16, 16);
    if (first > 0 || past < 16)
      x = vec_mul(x, vec_mul(vec_load(factor + 16 - first), vec_load(factor + 32 - past)));
    vec_store(row + v * 16, x);
    sums = vec_add(sums, x);
  }
  *total = vec_sum_lanes(sums);
}

/* The first key that the query at `position` sees. */
TG_INLINE int64_t first_key(const tg_attention *op, int64_t position) {
  return op->window > 0 && position >= op->window ? position - op->window + 1 : 0;
}

/* Where the key, or the value, of a position lies. */
TG_INLINE const void *find(const tg_attention *op, const tile *t, int64_t position, bool value) {
  const int block_size = op->block_size, bits = __builtin_ctz((unsigned)block_size);
  const int64_t head = value ? op->num_kv_heads + t->kv_head : t->kv_head, offset = position & (block_size - 1);
  const int64_t i = t->block_table[position >> bits] * op->block_stride + head * block_size * op->head_dim +
                    (value ? offset * op->head_dim : offset);
  return at(op->kv_cache, i, op->kv_dtype);
}

/* Copies vector `v` of the keys of the span that begins at `first`; lanes from key `end` on become zeros. */
static const void *pack_keys(const tg_attention *op, const tile *t, int64_t first, int v, int end) {
  const int head_dim = op->head_dim, block_size = op->block_size;
  float *packed = own.packed + (int64_t)v * 16 * head_dim;
  if (block_size >= 16) {
    const void *keys = find(op, t, first + v * 16, false);
    for (int d = 0; d < head_dim; d++) vec_store(packed + d * 16, load(keys, (int64_t)d * block_size, op->kv_dtype));
    return packed;
  }
  memset(packed, 0, (size_t)head_dim * 16 * sizeof(float));
  for (int key = v * 16; key < v * 16 + 16 && key < end; key++) {
    const void *source = find(op, t, first + key, false);
    for (int d = 0; d < head_dim; d++) {
      const void *number = at(source, (int64_t)d * block_size, op->kv_dtype);
      packed[d * 16 + key % 16] =
          op->kv_dtype == TG_BF16 ? from_bf16(*(const uint16_t *)number) : *(const float *)number;
    }
  }
  return packed;
}

/* Finds the span's keys [begin, end) and their values; gives the distance from one dimension of a key to the next. */
static int64_t find_span(const tg_attention *op, const tile *t, int64_t span, int begin, int end, bool pack,
                         int run_bits) {
  const int64_t first = span * TG_SPAN;
  int run = begin >> run_bits;
  for (; run << run_bits < end; run++) own.values[run] = find(op, t, first + (run << run_bits), true);
  /* A span that is not the tile's last is full, and the next one has its first key. */
  const bool more = first + end < t->position + t->num_queries;
  own.values[run] = more ? find(op, t, first + TG_SPAN, false) : own.values[run - 1];

  int v = begin / 16;
  for (; v * 16 < end; v++) own.keys[v] = pack ? pack_keys(op, t, first, v, end) : find(op, t, first + v * 16, false);
  for (int i = 0; i < MAX_WIDTH; i++) {
    const int key = begin + i * 16 < end ? begin + i * 16 : begin;
    own.keys[v + i] = find(op, t, first + key, true);
  }
  return pack ? 16 : op->block_size;
}

/* Reduces a span for up to BLOCK_ROWS rows of the tile, and merges it with the spans before. */
static void reduce_span(const tg_attention *op, const tile *t, int64_t span, int row, int rows, int64_t key_stride,
                        int key_dtype, int run_bits) {
  int low[BLOCK_ROWS], high[BLOCK_ROWS];
  for (int r = 0; r < rows; r++) {
    const int64_t position = t->position + (row + r) / t->num_heads;
    low[r] = clamp(first_key(op, position) - span * TG_SPAN, TG_SPAN);
    high[r] = clamp(position + 1 - span * TG_SPAN, TG_SPAN);
  }
  const int begin = low[0], end = high[rows - 1]; /* positions ascend with the rows */
  if (begin >= end) return;
  const int first_vec = begin / 16, past_vec = (end + 15) / 16;
  score(rows, own.query[row], key_stride, op->head_dim, first_vec, past_vec, key_dtype);

  _Alignas(64) float keep[16] = {0}, take[16] = {0}, totals[BLOCK_ROWS];
  for (int r = 0; r < rows; r++) {
    float *maximum = &own.maximum[row + r];
    if (low[r] >= high[r]) {
      memset(own.weights[r] + first_vec * 16, 0, (size_t)(past_vec - first_vec) * 16 * sizeof(float));
      continue;
    }
    float later;
    weigh_scores(own.weights[r], first_vec, past_vec, low[r], high[r], op->soft_cap, &later, &totals[r]);
    const float most = *maximum > later ? *maximum : later;
    keep[r] = *maximum - most;
    take[r] = later - most;
    *maximum = most;
  }
  vec_store(keep, vec_exp(vec_max(vec_set(LEAST_EXPONENT), vec_load(keep))));
  vec_store(take, vec_exp(vec_max(vec_set(LEAST_EXPONENT), vec_load(take))));
  for (int r = 0; r < rows; r++) {
    if (low[r] >= high[r]) take[r] = 0.0f;
    else own.total[row + r] = own.total[row + r] * keep[r] + totals[r] * take[r];
  }
  weigh(rows, begin, end, run_bits, op->head_dim, own.weighted[row], keep, take, op->kv_dtype);
}

static void store_row(const tg_attention *op, const float *weighted, float total, int64_t at) {
  const vec divisor = vec_set(total);
  for (int d = 0; d < op->head_dim; d += 16) {
    const int count = op->head_dim - d < 16 ? op->head_dim - d : 16;
    const vec x = vec_div(vec_load(weighted + d), divisor);
    vec_store_as(op->out, at + d, x, count, op->out_dtype);
  }
}

static void attend(const tg_attention *op, const tile *t) {
  const int head_dim = op->head_dim, num_rows = t->num_queries * t->num_heads;
  for (int r = 0; r < num_rows; r++) {
    const float *query = op->query + (t->token + r / t->num_heads) * op->query_stride +
                         (int64_t)(t->q_head + r % t->num_heads) * head_dim;
    for (int d = 0; d < head_dim; d++) own.query[r][d] = query[d] * op->scale;
    memset(own.weighted[r], 0, (size_t)(head_dim + 15) / 16 * 16 * sizeof(float));
    own.maximum[r] = HIDDEN;
    own.total[r] = 0.0f;
  }

  /* Small blocks scatter a vector of keys; and bfloat16 is converted once rather than for every few rows. */
  const bool pack = op->block_size < 16 || (op->kv_dtype == TG_BF16 && num_rows > 2 * BLOCK_ROWS);
  const int run_bits = __builtin_ctz((unsigned)(op->block_size < TG_SPAN ? op->block_size : TG_SPAN));
  const int64_t low = first_key(op, t->position), high = t->position + t->num_queries;
  for (int64_t span = low / TG_SPAN; span * TG_SPAN < high; span++) {
    const int begin = clamp(low - span * TG_SPAN, TG_SPAN), end = clamp(high - span * TG_SPAN, TG_SPAN);
    const int64_t key_stride = find_span(op, t, span, begin, end, pack, run_bits);
    for (int row = 0; row < num_rows; row += BLOCK_ROWS) {
      const int rows = num_rows - row < BLOCK_ROWS ? num_rows - row : BLOCK_ROWS;
      reduce_span(op, t, span, row, rows, key_stride, pack ? TG_F32 : op->kv_dtype, run_bits);
    }
  }

  for (int r = 0; r < num_rows; r++)
    store_row(op, own.weighted[r], own.total[r],
              (t->token + r / t->num_heads) * op->out_stride + (int64_t)(t->q_head + r % t->num_heads) * head_dim);
}

void TG_NAME(attention_kernel)(const tg_attention *op, tg_counter *counter) {
  const int group = op->num_q_heads / op->num_kv_heads;
  const int part_heads = group < TILE_ROWS ? group : TILE_ROWS, num_parts = (group + part_heads - 1) / part_heads;
  const int tile_queries = TILE_ROWS / part_heads;
  const int64_t per_tile = (int64_t)op->num_kv_heads * num_parts; /* tasks for the same queries */
  int64_t total = 0;
  for (int r = 0; r < op->num_requests; r++)
    total += (op->query_start[r + 1] - op->query_start[r] + tile_queries - 1) / tile_queries * per_tile;

  int64_t begin, end, before = 0; /* tasks of the requests before `request` */
  int request = 0;
  while (tg_take(counter, 1, total, &begin, &end)) {
    int num_new;
    for (;; request++) {
      num_new = op->query_start[request + 1] - op->query_start[request];
      const int64_t tasks = (num_new + tile_queries - 1) / tile_queries * per_tile;
      if (begin < before + tasks) break;
      before += tasks;
    }
    const int query = (int)((begin - before) / per_tile) * tile_queries, part = (int)((begin - before) % per_tile);
    const int kv_head = part / num_parts, head = part % num_parts * part_heads;
    const tile t = {
        .block_table = op->block_table + request * op->table_stride,
        .token = op->query_start[request] + query,
        .position = op->context_len[request] - num_new + query,
        .kv_head = kv_head,
        .q_head = kv_head * group + head,
        .num_heads = group - head < part_heads ? group - head : part_heads,
        .num_queries = num_new - query < tile_queries ? num_new - query : tile_queries,
    };
    attend(op, &t);
  }
}
