/* Lays a weight out for the products: panels of sixteen outputs, inputs one after the other.
 *
 * Where an output goes is decided here, for all formats; how GGUF's blocks are taken apart in pack_quantized.c. */
#include <string.h>

#include "pack.h"

static uint16_t to_bf16(float value) { /* to the nearest, ties to even */
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (value != value) return 0x7fc0;
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float number_at(const void *source, int64_t i, int dtype) {
  float value;
  if (dtype == TG_F32) {
    memcpy(&value, (const float *)source + i, sizeof value);
  } else {
    uint32_t wide = (uint32_t)((const uint16_t *)source)[i] << 16;
    memcpy(&value, &wide, sizeof value);
  }
  return value;
}

static void pack_row_of_numbers(const tg_part *part, int64_t row, void *panel, int lane) {
  const int packing = part->linear->packing;
  for (int64_t input = 0; input < part->linear->k; input++) {
    const float value = number_at(part->source, row * part->output_stride + input * part->input_stride, part->dtype);
    if (packing == TG_PACKED_F32) ((float *)panel)[input * TG_PANEL + lane] = value;
    else if (packing == TG_PACKED_BF16) ((uint16_t *)panel)[input * TG_PANEL + lane] = to_bf16(value);
    else ((uint16_t *)panel)[(input & ~(int64_t)1) * TG_PANEL + lane * 2 + (input & 1)] = to_bf16(value);
  }
}

static void pack_output(const tg_part *part, int64_t row) {
  const tg_linear *linear = part->linear;
  const int64_t outputs = linear->is_halved ? linear->n / 2 : linear->n; /* of a half, or all */
  const int64_t output = part->first + row, half = output / outputs, in_half = output % outputs;
  const int64_t index = linear->is_halved ? in_half / TG_PANEL * 2 + half : output / TG_PANEL;
  char *panel = (char *)linear->weight + index * tg_size_of_panel(linear->packing, linear->k);
  const int lane = (int)(in_half % TG_PANEL);
  if (tg_is_quantized(linear->packing))
    tg_pack_row_of_blocks(linear->packing, linear->k, (const uint8_t *)part->source + row * part->output_stride,
                          (uint8_t *)panel, lane);
  else pack_row_of_numbers(part, row, panel, lane);
}

void tg_pack_kernel(const tg_part *part, tg_counter *counter) {
  int64_t begin, end;
  /* Sixteen at a time: lanes of one panel share cache lines. */
  while (tg_take(counter, TG_PANEL, part->count, &begin, &end))
    for (int64_t row = begin; row < end; row++) pack_output(part, row);
}
