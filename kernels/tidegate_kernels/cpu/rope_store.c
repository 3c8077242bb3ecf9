/* Rotates queries and keys by their positions, and writes keys and values into the paged cache.
 *
 * The same maths as rope_reference.py and store_kv_reference.py: fp32, products and sums rounded apart, and one
 * rounding to the cache's dtype at the end. A task is a few tokens, and nothing of a token depends on its neighbours.
 */
#include "kernels.h"
#include "simd.h"

#define MAX_HEAD_DIM 256

/* Tokens a thread takes at once. Neighbouring tokens of a prompt write to the same cache lines of a block, so a thread
 * gets as many as a usual block has; decoding tokens lie apart, and there are few of them to share out. */
#define STEP_PREFILL 16
#define STEP_DECODE 4
#define FEW_TOKENS 128

/* Pair i of a head is (i, i + half). `out` may be `x`. */
static void rotate(const float *x, float *out, const float *cos, const float *sin, int half) {
  for (int i = 0; i < half; i += 16) {
    if (half - i >= 16) {
      vec first = vec_load(x + i), second = vec_load(x + half + i), c = vec_load(cos + i), s = vec_load(sin + i);
      vec_store(out + i, vec_sub(vec_mul(first, c), vec_mul(second, s)));
      vec_store(out + half + i, vec_add(vec_mul(second, c), vec_mul(first, s)));
    } else {
      int count = half - i;
      vec first = vec_load_first(x + i, count), second = vec_load_first(x + half + i, count);
      vec c = vec_load_first(cos + i, count), s = vec_load_first(sin + i, count);
      vec_store_first(out + i, vec_sub(vec_mul(first, c), vec_mul(second, s)), count);
      vec_store_first(out + half + i, vec_add(vec_mul(second, c), vec_mul(first, s)), count);
    }
  }
}

static void round_to_bf16(const float *x, uint16_t *out, int n) {
  int i = 0;
  for (; i + 16 <= n; i += 16) vec_store_bf16(out + i, vec_load(x + i));
  if (i < n) vec_store_bf16_first(out + i, vec_load_first(x + i, n - i), n - i);
}

static void store_token(const tg_rope_store *op, int64_t token) {
  const int head_dim = op->head_dim, half = head_dim / 2, block_size = op->block_size;
  const float *cos = op->cos + op->positions[token] * half, *sin = op->sin + op->positions[token] * half;
  float *query = op->qkv + token * op->qkv_stride;
  const float *key = query + (int64_t)op->num_q_heads * head_dim;
  const float *value = key + (int64_t)op->num_kv_heads * head_dim;

  for (int h = 0; h < op->num_q_heads; h++) {
    float *head = query + (int64_t)h * head_dim;
    rotate(head, head, cos, sin, half);
  }

  const int64_t slot = op->slot_mapping[token];
  const int64_t offset = slot % block_size, head_size = (int64_t)block_size * head_dim;
  const int64_t keys_at = slot / block_size * op->block_stride, values_at = keys_at + op->num_kv_heads * head_size;
  for (int h = 0; h < op->num_kv_heads; h++) {
    float rotated[MAX_HEAD_DIM];
    rotate(key + (int64_t)h * head_dim, rotated, cos, sin, half);
    const float *v = value + (int64_t)h * head_dim;
    const int64_t key_at = keys_at + h * head_size + offset;
    const int64_t value_at = values_at + h * head_size + offset * head_dim;
    if (op->kv_dtype == TG_BF16) {
      uint16_t rounded[MAX_HEAD_DIM], *cache = op->kv_cache;
      round_to_bf16(rotated, rounded, head_dim);
      for (int d = 0; d < head_dim; d++) cache[key_at + (int64_t)d * block_size] = rounded[d];
      round_to_bf16(v, cache + value_at, head_dim);
    } else {
      float *cache = op->kv_cache;
      for (int d = 0; d < head_dim; d++) cache[key_at + (int64_t)d * block_size] = rotated[d];
      memcpy(cache + value_at, v, (size_t)head_dim * sizeof(float));
    }
  }
}

void TG_NAME(rope_store_kernel)(const tg_rope_store *op, tg_counter *counter) {
  const int64_t step = op->num_tokens > FEW_TOKENS ? STEP_PREFILL : STEP_DECODE;
  int64_t begin, end;
  while (tg_take(counter, step, op->num_tokens, &begin, &end))
    for (int64_t token = begin; token < end; token++) store_token(op, token);
}
