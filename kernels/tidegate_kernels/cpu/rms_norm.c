/* Root-mean-square normalisation; see rms_norm_reference.py. */
#include <math.h>

#include "kernels.h"
#include "simd.h"

static void normalise(const tg_rms_norm *op, int64_t row) {
  const float *x = op->x + (op->rows ? op->rows[row] : row) * op->x_stride;
  const int64_t n = op->n, whole = n & ~(int64_t)15, rest = n - whole;
  vec squares = vec_zero();
  for (int64_t i = 0; i < whole; i += 16) {
    vec v = vec_load(x + i);
    squares = vec_fma(v, v, squares);
  }
  if (rest) {
    vec v = vec_load_first(x + whole, (int)rest);
    squares = vec_fma(v, v, squares);
  }
  const vec inverse = vec_set(1.0f / sqrtf(vec_sum_lanes(squares) / (float)n + op->eps));
  const int size = op->y_dtype == TG_BF16 ? 2 : 4;
  char *y = (char *)op->y + row * op->y_stride * size;
  for (int64_t i = 0; i < whole; i += 16)
    vec_store_as(y, i, vec_mul(vec_mul(vec_load(x + i), inverse), vec_load(op->weight + i)), 16, op->y_dtype);
  if (rest) {
    vec v = vec_mul(vec_load_first(x + whole, (int)rest), inverse);
    vec_store_as(y, whole, vec_mul(v, vec_load_first(op->weight + whole, (int)rest)), (int)rest, op->y_dtype);
  }
}

void TG_NAME(rms_norm_kernel)(const tg_rms_norm *op, tg_counter *counter) {
  int64_t begin, end;
  while (tg_take(counter, 4, op->m, &begin, &end))
    for (int64_t row = begin; row < end; row++) normalise(op, row);
}
