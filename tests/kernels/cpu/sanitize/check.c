/* Runs every op of the CPU kernels at odd sizes, on two threads, with one or each instruction set of this machine.
 *
 * It compares nothing: the sanitizers that it is built with watch. Each operand lies in a heap block of exactly its size,
 * so that the first byte past it is an error. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tidegate_cpu.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))
/* A loop over cases; `*name` is one. */
#define EACH(type, name, ...)                                                                             \
  for (const type *name = (const type[]){__VA_ARGS__}, *name##_end = name + LENGTH(((type[]){__VA_ARGS__})); \
       name < name##_end; name++)

typedef const char *text;

static bool has_pairs; /* of bfloat16 */

/* --- Operands, all freed together at the end of a case ------------------------------------------------------------- */

static void *blocks[256];
static int num_blocks;

static void *block(int64_t size) {
  void *made = NULL;
  if (posix_memalign(&made, 64, (size_t)size) != 0 || num_blocks == LENGTH(blocks)) abort();
  blocks[num_blocks++] = made;
  return made;
}

static void free_blocks(void) {
  while (num_blocks > 0) free(blocks[--num_blocks]);
}

static float number(void) {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return (float)(state >> 8) / (1 << 23) - 1.0f;
}

static int64_t size_of(int dtype) { return dtype == TG_BF16 ? 2 : 4; }

static void *numbers(int64_t count, int dtype) {
  void *made = block(count * size_of(dtype));
  for (int64_t i = 0; i < count; i++) {
    const float value = number();
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == TG_BF16) ((uint16_t *)made)[i] = (uint16_t)(bits >> 16);
    else ((float *)made)[i] = value;
  }
  return made;
}

/* Rows of `stride` elements, of which the last ends with its `width`. */
static int64_t extent(int64_t rows, int64_t width, int64_t stride) { return (rows - 1) * stride + width; }

/* A weight of `n` outputs from two parts; from numbers, or from blocks of which every bit pattern is a number. */
static tg_linear linear(int64_t k, int64_t n, int packing, bool is_halved, bool has_bias, int source_dtype) {
  const int64_t half = is_halved ? n / 2 : n;
  const int64_t panels = (half + TG_PANEL - 1) / TG_PANEL * (is_halved ? 2 : 1);
  const tg_linear made = {.weight = block(panels * tg_panel_bytes(packing, k)), .bias = has_bias ? numbers(n, TG_F32) : NULL,
                          .n = n, .k = k, .packing = packing, .is_halved = is_halved};
  memset((void *)made.weight, 0, (size_t)(panels * tg_panel_bytes(packing, k)));
  const int64_t row_bytes = k / tg_block_inputs(packing) * tg_block_bytes(packing);
  for (int64_t first = 0, count = (n + 1) / 2; count > 0; first += count, count = n - first) {
    tg_part part = {.linear = &made, .first = first, .count = count, .dtype = source_dtype};
    if (row_bytes > 0) {
      part.output_stride = row_bytes + 1; /* rows at any address */
      uint8_t *rows = block(extent(count, row_bytes, part.output_stride));
      memset(rows, 0x35, (size_t)extent(count, row_bytes, part.output_stride));
      part.source = rows;
    } else if (first == 0) { /* as a checkpoint has it, and transposed */
      part.input_stride = 1, part.output_stride = k + 3;
      part.source = numbers(extent(count, k, part.output_stride), source_dtype);
    } else {
      part.input_stride = count + 3, part.output_stride = 1;
      part.source = numbers(extent(k, count, part.input_stride), source_dtype);
    }
    tg_pack(&part);
  }
  return made;
}

static int dtype_read(int packing) { return packing == TG_PACKED_BF16_PAIRS ? TG_BF16 : TG_F32; }

static bool can_run(int packing, int64_t k) {
  if (packing == TG_PACKED_BF16_PAIRS) return has_pairs && k % 2 == 0;
  return k % tg_block_inputs(packing) == 0;
}

#define PACKINGS                                                                                                \
  TG_PACKED_F32, TG_PACKED_BF16, TG_PACKED_BF16_PAIRS, TG_PACKED_Q8_0, TG_PACKED_Q4_0, TG_PACKED_Q4_1, TG_PACKED_Q4_K, \
      TG_PACKED_Q6_K

/* --- The ops -------------------------------------------------------------------------------------------------------- */

static void check_gemm(void) {
  EACH(int, packing, PACKINGS)
  EACH(int, epilogue, TG_STORE, TG_ADD, TG_SILU_MUL)
  EACH(int64_t, m, 1, 2, 5, 7, 15, 43)
  EACH(int64_t, n, 2, 16, 34, 66, 130)
  EACH(int64_t, k, 1, 6, 33, 64, 256) {
    if (!can_run(*packing, *k)) continue;
    const bool is_halved = *epilogue == TG_SILU_MUL, is_odd = (*m + *k / 2) % 2;
    const int x_dtype = dtype_read(*packing), y_dtype = *epilogue != TG_ADD && is_odd ? TG_BF16 : TG_F32;
    const tg_linear weight = linear(*k, *n, *packing, is_halved, is_odd, is_odd ? TG_F32 : TG_BF16);
    const int64_t width = is_halved ? *n / 2 : *n, x_stride = *k + 2, y_stride = width + 1;
    tg_run_gemm(&(tg_gemm){.linear = &weight, .x = numbers(extent(*m, *k, x_stride), x_dtype),
                           .y = numbers(extent(*m, width, y_stride), y_dtype), .m = *m,
                           .x_stride = x_stride, .y_stride = y_stride, .epilogue = *epilogue,
                           .y_dtype = y_dtype});
    free_blocks();
  }
}

static void check_rms_norm(void) {
  EACH(int64_t, m, 1, 3, 9)
  EACH(int64_t, n, 1, 15, 16, 17, 100)
  EACH(int, dtype, TG_F32, TG_BF16) {
    const int64_t x_stride = *n + 1, y_stride = *n + 5;
    tg_run_rms_norm(&(tg_rms_norm){.x = numbers(extent(*m, *n, x_stride), TG_F32),
                                   .weight = numbers(*n, TG_F32),
                                   .y = numbers(extent(*m, *n, y_stride), *dtype), .m = *m,
                                   .n = *n, .x_stride = x_stride, .y_stride = y_stride, .eps = 1e-5f,
                                   .y_dtype = *dtype});
    free_blocks();
  }
}

static void check_embed(void) {
  EACH(int, packing, PACKINGS)
  EACH(int64_t, k, 1, 6, 33, 512)
  EACH(int64_t, n, 1, 17, 50) {
    if (!can_run(*packing, *k)) continue;
    const tg_linear embedding = linear(*k, *n, *packing, false, false, TG_F32);
    int64_t *token_ids = block(3 * sizeof *token_ids);
    token_ids[0] = *n - 1, token_ids[1] = 0, token_ids[2] = *n / 2;
    tg_run_embed(&(tg_embed){.embedding = &embedding, .token_ids = token_ids, .y = numbers(3 * *k, TG_F32), .m = 3});
    free_blocks();
  }
}

static void check_argmax(void) {
  EACH(int64_t, n, 1, 15, 16, 17, 1023, 1025, 2100)
  EACH(float, last, 0.0f, 2.0f, NAN, -INFINITY) {
    const int64_t m = 3, stride = *n + 1;
    float *x = numbers(extent(m, *n, stride), TG_F32);
    x[extent(m, *n, stride) - 1] = *last;
    tg_run_argmax(&(tg_argmax){.x = x, .index = block(m * 8), .maximum = block(m * 4), .m = m, .n = *n,
                               .x_stride = stride});
    free_blocks();
  }
}

/* Rows whose last number is given: rising ones, and ones without order. */
static const float *rows_of(int64_t m, int64_t n, bool is_rising, float last) {
  float *x = numbers(m * n, TG_F32);
  for (int64_t i = 0; i < m * n && is_rising; i++) x[i] = (float)(i % n) / 64;
  for (int64_t row = 0; row < m; row++) x[row * n + n - 1] = last;
  return x;
}

static float maximum_of(const float *x, int64_t n) {
  float most = x[0];
  for (int64_t i = 1; i < n; i++) most = fmaxf(most, x[i]);
  return most;
}

static void check_draw(void) {
  EACH(int64_t, n, 1, 15, 16, 17, 1025, 2100)
  EACH(float, last, 0.0f, 60.0f, -1e30f)
  EACH(float, temperature, 1e-4f, 1.0f, 1e38f)
  EACH(double, top_p, 1.0, 0.9, 1e-6) {
    enum { NUM_ROWS = 5 };
    const int64_t top_k[NUM_ROWS] = {0, 1, *n / 2, *n, *n + 1};
    const float *x = rows_of(NUM_ROWS, *n, *temperature == 1.0f, *last);
    tg_draw_row *rows = block(NUM_ROWS * sizeof *rows);
    for (int i = 0; i < NUM_ROWS; i++)
      rows[i] = (tg_draw_row){.x = x + i * *n, .random = i * 0.2499, .top_p = *top_p, .top_k = top_k[i],
                              .maximum = maximum_of(x + i * *n, *n), .temperature = *temperature};
    tg_run_draw(&(tg_draw){.rows = rows, .token_ids = block(NUM_ROWS * 8), .m = NUM_ROWS, .n = *n});
    free_blocks();
  }
}

static void check_logprobs(void) {
  EACH(int64_t, n, 1, 15, 16, 17, 257, 2100)
  EACH(float, last, 0.0f, 2.0f, -INFINITY) {
    if (*n == 1 && *last == -INFINITY) continue; /* nothing to take a logarithm of */
    enum { NUM_ROWS = 4 };
    const int64_t num_top[NUM_ROWS] = {0, 1, *n / 2, *n};
    const float *x = rows_of(NUM_ROWS, *n, *last == 2.0f, *last);
    tg_logprobs_row *rows = block(NUM_ROWS * sizeof *rows);
    for (int i = 0; i < NUM_ROWS; i++)
      rows[i] = (tg_logprobs_row){.x = x + i * *n, .token_id = *n - 1, .num_top = num_top[i],
                                  .maximum = maximum_of(x + i * *n, *n)};
    tg_run_logprobs(&(tg_logprobs){.rows = rows, .logprobs = block(NUM_ROWS * 4), .top_ids = block(NUM_ROWS * *n * 8),
                                   .top_logprobs = block(NUM_ROWS * *n * 4), .m = NUM_ROWS, .n = *n, .top_stride = *n});
    free_blocks();
  }
}

/* --- Attention: a step of requests, and the cache that they read and write ------------------------------------------ */

typedef struct {
  int num_q_heads, num_kv_heads, head_dim, block_size;
} shape;

enum { NUM_REQUESTS = 4, NUM_CACHE_BLOCKS_SPARE = 1 };
static const int num_new[NUM_REQUESTS] = {1, 37, 1, 5};
static const int context_lens[NUM_REQUESTS] = {1, 37, 531, 262};

/* Every array of a step, each of its own size. The requests' blocks lie in the cache in descending order. */
enum { NUM_LAYERS = 2 };

typedef struct {
  tg_step step;
  const float *cos, *sin;
} prepared;

static prepared step_of(shape s, int kv_dtype) {
  const int64_t layer_stride = 2 * (int64_t)s.num_kv_heads * s.block_size * s.head_dim;
  tg_step step = {.num_requests = NUM_REQUESTS, .block_size = s.block_size, .kv_dtype = kv_dtype,
                  .layer_stride = layer_stride, .block_stride = NUM_LAYERS * layer_stride + 32};
  int64_t most_blocks = 0, sum_blocks = 0, most_context = 0;
  for (int r = 0; r < NUM_REQUESTS; r++) {
    const int64_t needed = (context_lens[r] + s.block_size - 1) / s.block_size;
    most_blocks = needed > most_blocks ? needed : most_blocks;
    most_context = context_lens[r] > most_context ? context_lens[r] : most_context;
    sum_blocks += needed;
    step.num_tokens += num_new[r];
  }
  int32_t *table = block(NUM_REQUESTS * most_blocks * 4), *start = block((NUM_REQUESTS + 1) * 4);
  int32_t *context_len = block(NUM_REQUESTS * 4);
  int64_t *positions = block(step.num_tokens * 8), *slots = block(step.num_tokens * 8);
  int64_t last_block = sum_blocks + NUM_CACHE_BLOCKS_SPARE, token = 0;
  start[0] = 0;
  for (int r = 0; r < NUM_REQUESTS; r++) {
    const int64_t needed = (context_lens[r] + s.block_size - 1) / s.block_size;
    for (int64_t b = 0; b < most_blocks; b++) table[r * most_blocks + b] = b < needed ? (int32_t)--last_block : 0;
    for (int64_t position = context_lens[r] - num_new[r]; position < context_lens[r]; position++, token++) {
      positions[token] = position;
      slots[token] = table[r * most_blocks + position / s.block_size] * (int64_t)s.block_size + position % s.block_size;
    }
    start[r + 1] = (int32_t)token;
    context_len[r] = context_lens[r];
  }
  step.block_table = table, step.table_stride = most_blocks, step.query_start = start, step.context_len = context_len;
  step.positions = positions, step.slot_mapping = slots;
  const int64_t total = sum_blocks + NUM_CACHE_BLOCKS_SPARE;
  step.kv_cache = numbers(extent(total, step.block_stride - 32, step.block_stride), kv_dtype);
  const int64_t num_angles = most_context * (s.head_dim / 2);
  return (prepared){step, numbers(num_angles, TG_F32), numbers(num_angles, TG_F32)};
}

static void check_rope_store_and_attention(void) {
  EACH(shape, s, {1, 1, 64, 16}, {6, 2, 20, 4}, {9, 3, 80, 32}, {70, 1, 16, 1}, {4, 4, 2, 64}, {2, 1, 256, 512})
  EACH(int, kv_dtype, TG_F32, TG_BF16)
  EACH(int, window, 0, 7, 300) {
    const prepared made = step_of(*s, *kv_dtype);
    const tg_step step = made.step;
    const int out_dtype = *window ? TG_F32 : TG_BF16;
    const int64_t q_size = s->num_q_heads * s->head_dim, qkv_size = q_size + 2 * s->num_kv_heads * s->head_dim;
    const int64_t qkv_stride = qkv_size + 1, out_stride = q_size + 3;
    float *qkv = numbers(extent(step.num_tokens, qkv_size, qkv_stride), TG_F32);
    tg_run_rope_store(&(tg_rope_store){.qkv = qkv, .kv_cache = step.kv_cache, .cos = made.cos, .sin = made.sin,
                                       .positions = step.positions, .slot_mapping = step.slot_mapping,
                                       .num_tokens = step.num_tokens, .qkv_stride = qkv_stride,
                                       .block_stride = step.block_stride, .num_q_heads = s->num_q_heads,
                                       .num_kv_heads = s->num_kv_heads, .head_dim = s->head_dim,
                                       .block_size = s->block_size, .kv_dtype = step.kv_dtype});
    tg_run_attention(&(tg_attention){.query = qkv, .out = numbers(extent(step.num_tokens, q_size, out_stride), out_dtype),
                                     .kv_cache = step.kv_cache, .block_table = step.block_table,
                                     .query_start = step.query_start, .context_len = step.context_len,
                                     .query_stride = qkv_stride, .out_stride = out_stride,
                                     .block_stride = step.block_stride, .table_stride = step.table_stride,
                                     .num_requests = (int32_t)step.num_requests, .num_q_heads = s->num_q_heads,
                                     .num_kv_heads = s->num_kv_heads, .head_dim = s->head_dim,
                                     .block_size = s->block_size, .kv_dtype = step.kv_dtype, .out_dtype = out_dtype,
                                     .window = *window, .scale = 0.125f,
                                     .soft_cap = *window == 7 ? 30.0f : 0.0f});
    free_blocks();
  }
}

static void check_model(void) {
  EACH(int, packing, PACKINGS)
  EACH(int, kv_dtype, TG_F32, TG_BF16) {
    if (!can_run(*packing, 0)) continue;
    const bool is_quantized = tg_block_bytes(*packing) > 0;
    const shape s = is_quantized ? (shape){4, 2, 64, 16} : (shape){6, 2, 20, 16};
    const int64_t hidden_size = is_quantized ? 256 : 50, intermediate = is_quantized ? 512 : 70, vocab_size = 37, q_size = s.num_q_heads * s.head_dim;
    const int64_t kv_size = s.num_kv_heads * s.head_dim, qkv_size = q_size + 2 * kv_size;
    const int x_dtype = dtype_read(*packing);
    const prepared made = step_of(s, *kv_dtype);
    tg_step step = made.step;
    int64_t *token_ids = block(step.num_tokens * 8), *sampled_rows = block(2 * 8);
    for (int64_t i = 0; i < step.num_tokens; i++) token_ids[i] = i * 7 % vocab_size;
    sampled_rows[0] = 0, sampled_rows[1] = step.num_tokens - 1;
    step.token_ids = token_ids, step.sampled_rows = sampled_rows, step.num_sampled = 2;
    step.hidden = numbers(step.num_tokens * hidden_size, TG_F32);
    step.normed = numbers(step.num_tokens * hidden_size, x_dtype);
    step.qkv = numbers(step.num_tokens * qkv_size, TG_F32);
    step.attended = numbers(step.num_tokens * q_size, x_dtype);
    step.gated = numbers(step.num_tokens * intermediate, x_dtype);
    step.logits = numbers(step.num_sampled * vocab_size, TG_F32);
    tg_layer layers[NUM_LAYERS];
    for (int i = 0; i < NUM_LAYERS; i++)
      layers[i] = (tg_layer){
          .attention_norm = numbers(hidden_size, TG_F32),
          .mlp_norm = numbers(hidden_size, TG_F32),
          .qkv = {linear(hidden_size, q_size + kv_size, *packing, false, true, TG_F32),
                  linear(hidden_size, kv_size, *packing, false, true, TG_F32)},
          .num_qkv = 2,
          .attention_out = linear(q_size, hidden_size, *packing, false, false, TG_F32),
          .gate_up = linear(hidden_size, 2 * intermediate, *packing, true, false, TG_F32),
          .down = linear(intermediate, hidden_size, *packing, false, false, TG_F32),
      };
    const tg_linear head = linear(hidden_size, vocab_size, *packing, false, false, TG_F32);
    const tg_model model = {.layers = layers, .embedding = &head, .head = &head, .final_norm = numbers(hidden_size, TG_F32), .cos = made.cos,
                            .sin = made.sin, .num_layers = NUM_LAYERS, .hidden_size = (int32_t)hidden_size,
                            .num_q_heads = s.num_q_heads, .num_kv_heads = s.num_kv_heads, .head_dim = s.head_dim,
                            .x_dtype = x_dtype, .eps = 1e-5f, .scale = 0.125f};
    tg_run_model(&model, &step);
    step.num_sampled = 0; /* as with chunks of prompts only */
    tg_run_model(&model, &step);
    free_blocks();
  }
}

/* usage: check [ISA] */
int main(int argc, char **argv) {
  EACH(text, isa, "avx2", "avx512", "avx512bf16") {
    if (!tg_supports(*isa) || (argc > 1 && strcmp(argv[1], *isa) != 0)) continue;
    const int cpus[2] = {0, 0};
    /* Pools come and go, of other sizes; the last has two threads. */
    for (int num_threads = 4; num_threads >= 1; num_threads--)
      if (tg_start(*isa, num_threads, NULL) != 0) return 1;
    if (tg_start(*isa, 2, cpus) != 0 || tg_start(*isa, 2, NULL) != 0) return 1;
    has_pairs = strcmp(tg_isa(), "avx512bf16") == 0;
    check_gemm();
    check_rms_norm();
    check_embed();
    check_argmax();
    check_draw();
    check_logprobs();
    check_rope_store_and_attention();
    check_model();
    tg_stop();
    printf("%s\n", *isa);
    fflush(stdout);
  }
  return 0;
}
