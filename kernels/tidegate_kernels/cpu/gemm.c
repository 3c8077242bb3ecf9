/* Products with packed weights: `y = x @ weight + bias`, and what is done with the sums on the way out.
 *
 * A tile is some rows times some panels, with its sums in registers from the first input to the last. Each sum takes its
 * inputs in ascending order, one fused multiply-add after the other, whatever the tile's height and width: a row's bits
 * depend on nothing else. There is no blocking over inputs, for it would not pay: a panel of 1,536 inputs stays in the
 * second-level cache. */
#include "kernels.h"
#include "quantized.h"
#include "simd.h"

/* Panels of the widest group that goes through together. */
#define MAX_WIDTH 4
/* Rows of the tallest tile by its width in panels: its sums, the weights and one row's value fill the registers. */
#ifdef __AVX512F__
#define MAX_HEIGHT 14
#define WIDTH_OF_MANY_ROWS 2
#define QUANTIZED_WIDTH 4
static const int max_height[MAX_WIDTH + 1] = {[1] = 14, [2] = 14, [4] = 6};
#else
#define MAX_HEIGHT 6
#define WIDTH_OF_MANY_ROWS 1
#define QUANTIZED_WIDTH 2
static const int max_height[MAX_WIDTH + 1] = {[1] = 6, [2] = 3, [4] = 1};
#endif

/* Bytes ahead at which a tile asks for its weights, which it reads but once when there are few rows. */
#define PREFETCH_BYTES 1024
#define PREFETCH_HEIGHT 4

/* From so many tiles on, widening bfloat16 weights once costs less than doing it in each tile. */
#define MIN_TILES_TO_WIDEN 3

/* Rows of the tallest tile that widens quantised weights as it reads them; for more rows they are widened once. */
#define QUANTIZED_HEIGHT 2

typedef void (*tile_fn)(const void *x, int64_t x_stride, const void *weight, int64_t k, float *sums);

/* Sums lie `[height][MAX_WIDTH][16]`, whatever the width. */
#define SUMS_STRIDE (MAX_WIDTH * TG_PANEL)

TG_INLINE vec load_weight(const void *weight, int64_t i, int packing) {
  return packing == TG_PACKED_F32 ? vec_load((const float *)weight + i) : vec_load_bf16((const uint16_t *)weight + i);
}

TG_INLINE void tile(const int height, const int width, const int packing, const void *x, int64_t x_stride,
                    const void *weight, int64_t k, float *sums) {
  const int size = packing == TG_PACKED_F32 ? 4 : 2;
  const float *row = x;
  vec sum[MAX_HEIGHT][MAX_WIDTH];
#pragma GCC unroll 16
  for (int r = 0; r < height; r++)
#pragma GCC unroll 4
    for (int p = 0; p < width; p++) sum[r][p] = vec_zero();
  for (int64_t i = 0; i < k; i++) {
    vec w[MAX_WIDTH];
#pragma GCC unroll 4
    for (int p = 0; p < width; p++) {
      w[p] = load_weight(weight, (p * k + i) * TG_PANEL, packing);
      if (height <= PREFETCH_HEIGHT)
        _mm_prefetch((const char *)weight + (p * k + i) * TG_PANEL * size + PREFETCH_BYTES, _MM_HINT_T0);
    }
#pragma GCC unroll 16
    for (int r = 0; r < height; r++) {
      vec value = vec_set(row[r * x_stride + i]);
#pragma GCC unroll 4
      for (int p = 0; p < width; p++) sum[r][p] = vec_fma(value, w[p], sum[r][p]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < height; r++)
#pragma GCC unroll 4
    for (int p = 0; p < width; p++) vec_store(sums + r * SUMS_STRIDE + p * TG_PANEL, sum[r][p]);
}

#ifdef __AVX512BF16__
TG_INLINE void tile_of_pairs(const int height, const int width, const void *x, int64_t x_stride, const void *weight,
                             int64_t k, float *sums) {
  const uint16_t *row = x, *panel = weight;
  vec sum[MAX_HEIGHT][MAX_WIDTH];
#pragma GCC unroll 16
  for (int r = 0; r < height; r++)
#pragma GCC unroll 4
    for (int p = 0; p < width; p++) sum[r][p] = vec_zero();
  for (int64_t i = 0; i < k; i += 2) {
    __m512bh w[MAX_WIDTH];
#pragma GCC unroll 4
    for (int p = 0; p < width; p++) {
      const uint16_t *pairs = panel + (p * k + i) * TG_PANEL;
      w[p] = (__m512bh)_mm512_loadu_si512(pairs);
      if (height <= PREFETCH_HEIGHT) _mm_prefetch((const char *)pairs + PREFETCH_BYTES, _MM_HINT_T0);
    }
#pragma GCC unroll 16
    for (int r = 0; r < height; r++) {
      int32_t pair;
      memcpy(&pair, row + r * x_stride + i, sizeof pair);
      __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int p = 0; p < width; p++) sum[r][p] = _mm512_dpbf16_ps(sum[r][p], value, w[p]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < height; r++)
#pragma GCC unroll 4
    for (int p = 0; p < width; p++) vec_store(sums + r * SUMS_STRIDE + p * TG_PANEL, sum[r][p]);
}
#endif

/* Quantised weights, widened in registers. */
TG_INLINE void tile_of_groups(const int height, const int width, const int packing, const void *x, int64_t x_stride,
                              const void *weight, int64_t k, float *sums) {
  const tg_quantization form = tg_quantization_of(packing);
  const int64_t panel_bytes = tg_size_of_panel(packing, k);
  const float *row = x;
  const uint8_t *next = weight;
  vec sum[QUANTIZED_HEIGHT][MAX_WIDTH];
#pragma GCC unroll 2
  for (int r = 0; r < height; r++)
#pragma GCC unroll 4
    for (int p = 0; p < width; p++) sum[r][p] = vec_zero();
  for (int64_t input = 0; input < k; input += form.inputs) {
    const uint8_t *header = next;
    next += form.header_bytes;
    for (int g = 0; g < form.inputs; g += form.group_inputs, row += form.group_inputs, next += form.group_bytes) {
      widening by[MAX_WIDTH];
#pragma GCC unroll 4
      for (int p = 0; p < width; p++) by[p] = load_widening(packing, header + p * panel_bytes, next + p * panel_bytes);
      for (int i = 0; i < form.group_inputs; i += 4)
#pragma GCC unroll 2
        for (int at = 0; at < 4; at += 2) {
          ivec w[2][MAX_WIDTH];
#pragma GCC unroll 4
          for (int p = 0; p < width; p++)
            load_pair(packing, next + p * panel_bytes + form.numbers_at, i, at, &w[0][p], &w[1][p]);
#pragma GCC unroll 2
          for (int e = 0; e < 2; e++)
#pragma GCC unroll 2
            for (int r = 0; r < height; r++) {
              vec value = vec_set(row[r * x_stride + i + at + e]);
#pragma GCC unroll 4
              for (int p = 0; p < width; p++) sum[r][p] = vec_fma(value, widen(packing, w[e][p], by[p]), sum[r][p]);
            }
        }
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < height; r++)
#pragma GCC unroll 4
    for (int p = 0; p < width; p++) vec_store(sums + r * SUMS_STRIDE + p * TG_PANEL, sum[r][p]);
}

#define TILE(name, height, width, packing)                                                                     \
  static __attribute__((noinline)) void name##_##height##x##width(const void *x, int64_t x_stride,              \
                                                                  const void *weight, int64_t k, float *sums) { \
    tile(height, width, packing, x, x_stride, weight, k, sums);                                                \
  }
#define TILE_OF_PAIRS(name, height, width, packing)                                                            \
  static __attribute__((noinline)) void name##_##height##x##width(const void *x, int64_t x_stride,              \
                                                                  const void *weight, int64_t k, float *sums) { \
    tile_of_pairs(height, width, x, x_stride, weight, k, sums);                                                \
  }

#define TILE_OF_GROUPS(name, height, width, packing)                                                           \
  static __attribute__((noinline)) void name##_##height##x##width(const void *x, int64_t x_stride,              \
                                                                  const void *weight, int64_t k, float *sums) { \
    tile_of_groups(height, width, packing, x, x_stride, weight, k, sums);                                      \
  }

/* Every tile whose sums fit into the registers, and the table of them by height and width. */
#ifdef __AVX512F__
#define TILES(make, name, packing)                                                                              \
  make(name, 1, 1, packing) make(name, 2, 1, packing) make(name, 3, 1, packing) make(name, 4, 1, packing)       \
  make(name, 5, 1, packing) make(name, 6, 1, packing) make(name, 7, 1, packing) make(name, 8, 1, packing)       \
  make(name, 9, 1, packing) make(name, 10, 1, packing) make(name, 11, 1, packing) make(name, 12, 1, packing)    \
  make(name, 13, 1, packing) make(name, 14, 1, packing)                                                         \
  make(name, 1, 2, packing) make(name, 2, 2, packing) make(name, 3, 2, packing) make(name, 4, 2, packing)       \
  make(name, 5, 2, packing) make(name, 6, 2, packing) make(name, 7, 2, packing) make(name, 8, 2, packing)       \
  make(name, 9, 2, packing) make(name, 10, 2, packing) make(name, 11, 2, packing) make(name, 12, 2, packing)    \
  make(name, 13, 2, packing) make(name, 14, 2, packing)                                                         \
  make(name, 1, 4, packing) make(name, 2, 4, packing) make(name, 3, 4, packing) make(name, 4, 4, packing)       \
  make(name, 5, 4, packing) make(name, 6, 4, packing)                                                           \
  static const tile_fn name[MAX_WIDTH + 1][MAX_HEIGHT + 1] = {                                                  \
      [1] = {0, name##_1x1, name##_2x1, name##_3x1, name##_4x1, name##_5x1, name##_6x1, name##_7x1, name##_8x1, \
             name##_9x1, name##_10x1, name##_11x1, name##_12x1, name##_13x1, name##_14x1},                      \
      [2] = {0, name##_1x2, name##_2x2, name##_3x2, name##_4x2, name##_5x2, name##_6x2, name##_7x2, name##_8x2, \
             name##_9x2, name##_10x2, name##_11x2, name##_12x2, name##_13x2, name##_14x2},                      \
      [4] = {0, name##_1x4, name##_2x4, name##_3x4, name##_4x4, name##_5x4, name##_6x4}};
#else
#define TILES(make, name, packing)                                                                              \
  make(name, 1, 1, packing) make(name, 2, 1, packing) make(name, 3, 1, packing) make(name, 4, 1, packing)       \
  make(name, 5, 1, packing) make(name, 6, 1, packing)                                                           \
  make(name, 1, 2, packing) make(name, 2, 2, packing) make(name, 3, 2, packing) make(name, 1, 4, packing)       \
  static const tile_fn name[MAX_WIDTH + 1][MAX_HEIGHT + 1] = {                                                  \
      [1] = {0, name##_1x1, name##_2x1, name##_3x1, name##_4x1, name##_5x1, name##_6x1},                        \
      [2] = {0, name##_1x2, name##_2x2, name##_3x2},                                                            \
      [4] = {0, name##_1x4}};
#endif

TILES(TILE, f32, TG_PACKED_F32)
TILES(TILE, bf16, TG_PACKED_BF16)
#ifdef __AVX512BF16__
TILES(TILE_OF_PAIRS, pairs, TG_PACKED_BF16_PAIRS)
#endif

#ifdef __AVX512F__
#define TILES_OF_GROUPS(name, packing)                                                                        \
  TILE_OF_GROUPS(name, 1, 1, packing) TILE_OF_GROUPS(name, 2, 1, packing) TILE_OF_GROUPS(name, 1, 2, packing) \
  TILE_OF_GROUPS(name, 2, 2, packing) TILE_OF_GROUPS(name, 1, 4, packing) TILE_OF_GROUPS(name, 2, 4, packing) \
  static const tile_fn name[QUANTIZED_WIDTH + 1][QUANTIZED_HEIGHT + 1] = {                                    \
      [1] = {0, name##_1x1, name##_2x1}, [2] = {0, name##_1x2, name##_2x2}, [4] = {0, name##_1x4, name##_2x4}};
#else
#define TILES_OF_GROUPS(name, packing)                                                                        \
  TILE_OF_GROUPS(name, 1, 1, packing) TILE_OF_GROUPS(name, 2, 1, packing) TILE_OF_GROUPS(name, 1, 2, packing) \
  TILE_OF_GROUPS(name, 2, 2, packing)                                                                         \
  static const tile_fn name[QUANTIZED_WIDTH + 1][QUANTIZED_HEIGHT + 1] = {                                    \
      [1] = {0, name##_1x1, name##_2x1}, [2] = {0, name##_1x2, name##_2x2}};
#endif
TILES_OF_GROUPS(q8_0, TG_PACKED_Q8_0)
TILES_OF_GROUPS(q4_0, TG_PACKED_Q4_0)
TILES_OF_GROUPS(q4_1, TG_PACKED_Q4_1)
TILES_OF_GROUPS(q4_k, TG_PACKED_Q4_K)
TILES_OF_GROUPS(q6_k, TG_PACKED_Q6_K)

static tile_fn find_tile(int packing, int width, int height) {
  switch (packing) {
    case TG_PACKED_Q8_0: return q8_0[width][height];
    case TG_PACKED_Q4_0: return q4_0[width][height];
    case TG_PACKED_Q4_1: return q4_1[width][height];
    case TG_PACKED_Q4_K: return q4_k[width][height];
    case TG_PACKED_Q6_K: return q6_k[width][height];
    case TG_PACKED_F32: return f32[width][height];
    case TG_PACKED_BF16: return bf16[width][height];
#ifdef __AVX512BF16__
    case TG_PACKED_BF16_PAIRS: return pairs[width][height];
#endif
    default: return 0;
  }
}

/* A group is as many panels as go through together: as wide as possible while all rows fit beside, for then each weight
 * is read once; and otherwise as wide as the tallest tiles allow. */
static int group_width(int packing, int64_t m) {
  if (tg_is_quantized(packing)) return m <= QUANTIZED_HEIGHT ? QUANTIZED_WIDTH : WIDTH_OF_MANY_ROWS;
  for (int width = MAX_WIDTH; width > WIDTH_OF_MANY_ROWS; width /= 2)
    if (m <= max_height[width]) return width;
  return WIDTH_OF_MANY_ROWS;
}

static int64_t count_tiles(int packing, int width, int64_t m) {
  const int height = tg_is_quantized(packing) ? QUANTIZED_HEIGHT : max_height[width];
  return (m + height - 1) / height;
}

TG_INLINE vec with_bias(const tg_linear *linear, vec sums, int64_t first, int count) {
  if (!linear->bias) return sums;
  const float *bias = linear->bias + first;
  return vec_add(sums, count == TG_PANEL ? vec_load(bias) : vec_load_first(bias, count));
}

/* Stores a tile's sums. `panel`, `num_panels`: those of the group; `row`, `height`: those of the tile. */
static void finish(const tg_gemm *op, const float *sums, int64_t panel, int num_panels, int64_t row, int height) {
  const tg_linear *linear = op->linear;
  if (op->epilogue == TG_SILU_MUL) {
    const int64_t half = linear->n / 2;
    for (int p = 0; p < num_panels; p += 2) {
      const int64_t first = (panel + p) / 2 * TG_PANEL;
      const int count = half - first < TG_PANEL ? (int)(half - first) : TG_PANEL;
      for (int r = 0; r < height; r++) {
        const float *pair = sums + r * SUMS_STRIDE + p * TG_PANEL;
        vec gate = with_bias(linear, vec_load(pair), first, count);
        vec up = with_bias(linear, vec_load(pair + TG_PANEL), half + first, count);
        vec denominator = vec_add(vec_set(1.0f), vec_exp(vec_sub(vec_zero(), gate)));
        vec y = vec_mul(vec_div(gate, denominator), up);
        vec_store_as(op->y, (row + r) * op->y_stride + first, y, count, op->y_dtype);
      }
    }
    return;
  }
  for (int p = 0; p < num_panels; p++) {
    const int64_t first = (panel + p) * TG_PANEL;
    const int count = linear->n - first < TG_PANEL ? (int)(linear->n - first) : TG_PANEL;
    for (int r = 0; r < height; r++) {
      vec y = with_bias(linear, vec_load(sums + r * SUMS_STRIDE + p * TG_PANEL), first, count);
      const int64_t i = (row + r) * op->y_stride + first;
      if (op->epilogue == TG_ADD) {
        const float *before = (const float *)op->y + i;
        y = vec_add(count == TG_PANEL ? vec_load(before) : vec_load_first(before, count), y);
      }
      vec_store_as(op->y, i, y, count, op->y_dtype);
    }
  }
}

/* Whether all rows together are better served by weights as fp32. */
static bool is_worth_widening(int packing, int64_t num_tiles) {
  if (tg_is_quantized(packing)) return num_tiles > 1;
  return packing == TG_PACKED_BF16 && num_tiles >= MIN_TILES_TO_WIDEN;
}

/* Weights of a group as fp32; exact, so the same bits either way. NULL where there is no memory for it. */
static const float *widened(int packing, const char *weights, int num_panels, int64_t k) {
  const int64_t count = k * TG_PANEL;
  float *buffer = tg_pool_scratch((size_t)(num_panels * count) * sizeof(float));
  for (int p = 0; buffer && p < num_panels; p++) {
    const char *panel = weights + p * tg_size_of_panel(packing, k);
    float *out = buffer + p * count;
    if (tg_is_quantized(packing)) {
      widen_panel(packing, (const uint8_t *)panel, k, ALL_LANES, out);
      continue;
    }
    for (int64_t i = 0; i < count; i += TG_PANEL) vec_store(out + i, vec_load_bf16((const uint16_t *)panel + i));
  }
  return buffer;
}

/* All rows times one group of panels. */
static void product(const tg_gemm *op, int64_t panel, int num_panels, int width) {
  const tg_linear *linear = op->linear;
  int packing = linear->packing;
  const char *weights = (const char *)linear->weight + panel * tg_size_of_panel(packing, linear->k);
  const int x_size = packing == TG_PACKED_BF16_PAIRS ? 2 : 4;
  float sums[MAX_HEIGHT * SUMS_STRIDE] __attribute__((aligned(64)));
  if (is_worth_widening(packing, count_tiles(packing, width, op->m))) {
    const float *wide = widened(packing, weights, num_panels, linear->k);
    if (wide) {
      weights = (const char *)wide;
      packing = TG_PACKED_F32;
    }
  }
  const int64_t panel_bytes = tg_size_of_panel(packing, linear->k);
  const int64_t num_tiles = count_tiles(packing, width, op->m);
  for (int64_t t = 0; t < num_tiles; t++) {
    /* Heights as equal as can be: a last tile of one row would read all weights for it alone. */
    const int64_t row = op->m * t / num_tiles;
    const int height = (int)(op->m * (t + 1) / num_tiles - row);
    const char *x = (const char *)op->x + row * op->x_stride * x_size;
    for (int p = 0; p < num_panels;) {
      int step = width;
      while (step > num_panels - p) step /= 2;
      find_tile(packing, step, height)(x, op->x_stride, weights + p * panel_bytes, linear->k, sums + p * TG_PANEL);
      p += step;
    }
    finish(op, sums, panel, num_panels, row, height);
  }
}

void TG_NAME(gemm_kernel)(const tg_gemm *op, tg_counter *counter) {
  const int64_t num_panels = tg_num_panels(op->linear);
  const int width = group_width(op->linear->packing, op->m), step = op->epilogue == TG_SILU_MUL ? 2 : 1;
  const int group = width > step ? width : step;
  const int num_threads = tg_pool_size();
  int64_t begin, end;
  while (tg_take_share(counter, step, num_panels, num_threads, &begin, &end))
    for (; begin < end; begin += group) product(op, begin, (int)(end - begin < group ? end - begin : group), width);
}
