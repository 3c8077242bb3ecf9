/* Quantised weights as fp32, in registers: to the bit what the `gguf` package de-quantises them to.
 *
 * `packing` is a constant wherever these are called, so that a format's branches are gone from the machine code. */
#ifndef TIDEGATE_QUANTIZED_H
#define TIDEGATE_QUANTIZED_H

#include "packing.h"
#include "simd.h"

/* The largest group of inputs of any format. */
#define MAX_GROUP 32

/* What widens a group: a number q stands for scale * q + minimum. A scale and a minimum of GGUF's have at most 19 bits, and
 * scale * q at most 24 where there is a minimum, so that one fused multiply-add rounds as a product and a sum do. */
typedef struct {
  vec scale, minimum;
} widening;

TG_INLINE widening load_widening(const int packing, const uint8_t *header, const uint8_t *group) {
  const vec first = vec_load_f16((const uint16_t *)(packing >= TG_PACKED_Q4_K ? header : group));
  switch (packing) {
    case TG_PACKED_Q4_0: return (widening){first, vec_mul(first, vec_set(-8.0f))};
    case TG_PACKED_Q4_1: return (widening){first, vec_load_f16((const uint16_t *)group + TG_PANEL)};
    case TG_PACKED_Q4_K: {
      const vec least = vec_sub(vec_zero(), vec_load_f16((const uint16_t *)header + TG_PANEL));
      return (widening){vec_mul(first, vec_from_ivec(ivec_load_u8(group))),
                        vec_mul(least, vec_from_ivec(ivec_load_u8(group + TG_PANEL)))};
    }
    case TG_PACKED_Q6_K: return (widening){vec_mul(first, vec_from_ivec(ivec_load_i8(group))), vec_zero()};
    default: return (widening){first, vec_zero()};
  }
}

/* Inputs `i + at` and `i + at + 1` of a group; `i` is a multiple of 4, `at` 0 or 2. */
TG_INLINE void load_pair(const int packing, const uint8_t *numbers, int i, const int at, ivec *first, ivec *second) {
  if (packing == TG_PACKED_Q8_0) {
    *first = ivec_load_i8(numbers + (i + at) * TG_PANEL);
    *second = ivec_load_i8(numbers + (i + at + 1) * TG_PANEL);
    return;
  }
  const ivec nibbles = ivec_load_u8(numbers + (i + at) / 2 * TG_PANEL);
  *first = ivec_and(nibbles, 15);
  *second = ivec_shift_right(nibbles, 4);
  if (packing == TG_PACKED_Q6_K) {
    const ivec upper = ivec_load_u8(numbers + 8 * TG_PANEL + i / 4 * TG_PANEL);
    const ivec of_first = ivec_and(ivec_shift_right(upper, 2 * at), 3);
    const ivec of_second = ivec_and(ivec_shift_right(upper, 2 * at + 2), 3);
    *first = ivec_add(ivec_or(*first, ivec_shift_left(of_first, 4)), -32);
    *second = ivec_add(ivec_or(*second, ivec_shift_left(of_second, 4)), -32);
  }
}

TG_INLINE vec widen(const int packing, ivec numbers, widening by) {
  const vec q = vec_from_ivec(numbers);
  if (packing == TG_PACKED_Q8_0 || packing == TG_PACKED_Q6_K) return vec_mul(by.scale, q);
  return vec_fma(by.scale, q, by.minimum);
}

/* One group as fp32 [inputs][16]. */
TG_INLINE void widen_group(const int packing, const uint8_t *header, const uint8_t *group, float *out) {
  const tg_quantization form = tg_quantization_of(packing);
  const widening by = load_widening(packing, header, group);
  for (int i = 0; i < form.group_inputs; i += 4)
#pragma GCC unroll 2
    for (int at = 0; at < 4; at += 2) {
      ivec first, second;
      load_pair(packing, group + form.numbers_at, i, at, &first, &second);
      vec_store(out + (i + at) * TG_PANEL, widen(packing, first, by));
      vec_store(out + (i + at + 1) * TG_PANEL, widen(packing, second, by));
    }
}

enum { ALL_LANES = -1 };

TG_INLINE void widen_panel_as(const int packing, const uint8_t *panel, int64_t k, int lane, float *out) {
  const tg_quantization form = tg_quantization_of(packing);
  float group[MAX_GROUP * TG_PANEL] __attribute__((aligned(64)));
  for (int64_t input = 0; input < k; input += form.inputs) {
    const uint8_t *header = panel;
    panel += form.header_bytes;
    for (int g = 0; g < form.inputs; g += form.group_inputs, panel += form.group_bytes) {
      if (lane == ALL_LANES) {
        widen_group(packing, header, panel, out + (input + g) * TG_PANEL);
        continue;
      }
      widen_group(packing, header, panel, group);
      for (int i = 0; i < form.group_inputs; i++) out[input + g + i] = group[i * TG_PANEL + lane];
    }
  }
}

/* A quantised panel as fp32: [k][16], or [k] where one lane is asked for. */
static inline void widen_panel(int packing, const uint8_t *panel, int64_t k, int lane, float *out) {
  switch (packing) {
    case TG_PACKED_Q8_0: widen_panel_as(TG_PACKED_Q8_0, panel, k, lane, out); break;
    case TG_PACKED_Q4_0: widen_panel_as(TG_PACKED_Q4_0, panel, k, lane, out); break;
    case TG_PACKED_Q4_1: widen_panel_as(TG_PACKED_Q4_1, panel, k, lane, out); break;
    case TG_PACKED_Q4_K: widen_panel_as(TG_PACKED_Q4_K, panel, k, lane, out); break;
    case TG_PACKED_Q6_K: widen_panel_as(TG_PACKED_Q6_K, panel, k, lane, out); break;
  }
}

#endif
