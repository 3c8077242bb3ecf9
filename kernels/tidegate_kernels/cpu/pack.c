/* Lays a weight out for the products: panels of sixteen outputs, inputs one after the other. */
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

static void put(const tg_linear *linear, int64_t panel, int64_t input, int lane, float value) {
  const int64_t start = panel * linear->k * TG_PANEL;
  switch (linear->packing) {
    case TG_PACKED_F32:
      ((float *)linear->weight)[start + input * TG_PANEL + lane] = value;
      break;
    case TG_PACKED_BF16:
      ((uint16_t *)linear->weight)[start + input * TG_PANEL + lane] = to_bf16(value);
      break;
    case TG_PACKED_BF16_PAIRS:
      ((uint16_t *)linear->weight)[start + (input & ~(int64_t)1) * TG_PANEL + lane * 2 + (input & 1)] = to_bf16(value);
      break;
  }
}

static void pack_panel(const tg_pack_op *op, int64_t panel) {
  const tg_linear *linear = op->linear;
  const int64_t outputs = linear->is_halved ? linear->n / 2 : linear->n;
  const int64_t first = (linear->is_halved ? panel / 2 : panel) * TG_PANEL;
  const int64_t count = outputs - first < TG_PANEL ? outputs - first : TG_PANEL;
  const int64_t column = first + (linear->is_halved && panel % 2 ? outputs : 0);
  for (int64_t input = 0; input < linear->k; input++)
    for (int lane = 0; lane < TG_PANEL; lane++)
      put(linear, panel, input, lane,
          lane < count ? number_at(op->source, input * op->stride + column + lane, op->dtype) : 0.0f);
}

void tg_pack_kernel(const tg_pack_op *op, tg_counter *counter) {
  const int64_t num_panels = tg_num_panels(op->linear);
  int64_t begin, end;
  while (tg_take(counter, 4, num_panels, &begin, &end))
    for (int64_t panel = begin; panel < end; panel++) pack_panel(op, panel);
}
