/* Sizes of packed weights, known to those who pack and to those who multiply. */
#ifndef TIDEGATE_PACKING_H
#define TIDEGATE_PACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "tidegate_cpu.h"

/* A quantised panel is a row of super-blocks, each a header and then its groups of inputs: for each group what widens it,
 * then its numbers. All of it for 16 outputs at once.
 *
 *   Q8_0                              group of 32: fp16 scale[16], int8  q[32][16]
 *   Q4_0                              group of 32: fp16 scale[16], nibbles[16][16]
 *   Q4_1                              group of 32: fp16 scale[16], fp16 minimum[16], nibbles[16][16]
 *   Q4_K  fp16 d[16], fp16 dmin[16];  group of 32: uint8 scale[16], uint8 minimum[16], nibbles[16][16]
 *   Q6_K  fp16 d[16];                 group of 16: int8 scale[16], nibbles[8][16], upper[4][16]
 *
 * A byte of nibbles holds two neighbouring inputs, the first in its lower half. A byte of `upper` holds bits 4 and 5 of
 * four neighbouring inputs, the first in its lowest bits. */
typedef struct {
  int inputs;        /* of a super-block, which is one GGUF block of each of the 16 rows */
  int header_bytes;  /* of a super-block */
  int group_inputs;
  int group_bytes;
  int numbers_at;    /* in a group, after what widens it */
  int source_bytes;  /* of one GGUF block */
} tg_quantization;

static inline tg_quantization tg_quantization_of(int packing) {
  switch (packing) {
    case TG_PACKED_Q8_0: return (tg_quantization){32, 0, 32, 32 + 32 * 16, 32, 34};
    case TG_PACKED_Q4_0: return (tg_quantization){32, 0, 32, 32 + 16 * 16, 32, 18};
    case TG_PACKED_Q4_1: return (tg_quantization){32, 0, 32, 64 + 16 * 16, 64, 20};
    case TG_PACKED_Q4_K: return (tg_quantization){256, 64, 32, 32 + 16 * 16, 32, 144};
    case TG_PACKED_Q6_K: return (tg_quantization){256, 32, 16, 16 + 8 * 16 + 4 * 16, 16, 210};
    default: return (tg_quantization){1, 0, 1, 0, 0, 0};
  }
}

static inline bool tg_is_quantized(int packing) { return packing >= TG_PACKED_Q8_0; }

static inline int64_t tg_size_of_panel(int packing, int64_t k) {
  if (!tg_is_quantized(packing)) return k * TG_PANEL * (packing == TG_PACKED_F32 ? 4 : 2);
  const tg_quantization q = tg_quantization_of(packing);
  return k / q.inputs * (q.header_bytes + q.inputs / q.group_inputs * q.group_bytes);
}

/* Panels of a packed weight; those of a halved one are filled half by half. */
static inline int64_t tg_num_panels(const tg_linear *linear) {
  const int64_t parts = linear->is_halved ? 2 : 1;
  return parts * ((linear->n / parts + TG_PANEL - 1) / TG_PANEL);
}

#endif
