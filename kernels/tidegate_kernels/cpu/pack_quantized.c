/* Takes rows of GGUF blocks apart and lays them out in the groups of packing.h, number for number.
 *
 * The blocks are those of ggml's `block_q8_0`, `block_q4_0`, `block_q4_1`, `block_q4_K` and `block_q6_K`. */
#include <string.h>

#include "pack.h"

/* A lane of a row of sixteen fp16. */
static void put_f16(uint8_t *lanes, int lane, const uint8_t *value) { memcpy(lanes + 2 * lane, value, 2); }

/* Where a group's lane holds its numbers, one by one in the order of their inputs. */
typedef struct {
  uint8_t *numbers;
  int lane;
} target;

static void put_byte(target to, int input, uint8_t value) { to.numbers[input * TG_PANEL + to.lane] = value; }

static void put_nibble(target to, int input, uint8_t value) {
  uint8_t *byte = to.numbers + input / 2 * TG_PANEL + to.lane;
  *byte = input % 2 ? (uint8_t)((*byte & 0x0f) | value << 4) : (uint8_t)((*byte & 0xf0) | value);
}

/* Bits 4 and 5 of a number of 6 bits. */
static void put_upper(target to, int input, uint8_t value) {
  uint8_t *byte = to.numbers + 8 * TG_PANEL + input / 4 * TG_PANEL + to.lane;
  const int shift = input % 4 * 2;
  *byte = (uint8_t)((*byte & ~(3 << shift)) | value << shift);
}

/* 32 numbers in 16 bytes: the lower halves come first. */
static void put_halves(target to, const uint8_t *bytes) {
  for (int i = 0; i < 16; i++) {
    put_nibble(to, i, bytes[i] & 15);
    put_nibble(to, i + 16, bytes[i] >> 4);
  }
}

static void pack_q8_0(const uint8_t *block, uint8_t *super, int lane) {
  put_f16(super, lane, block);
  for (int i = 0; i < 32; i++) put_byte((target){super + 32, lane}, i, block[2 + i]);
}

static void pack_q4_0(const uint8_t *block, uint8_t *super, int lane) {
  put_f16(super, lane, block);
  put_halves((target){super + 32, lane}, block + 2);
}

static void pack_q4_1(const uint8_t *block, uint8_t *super, int lane) {
  put_f16(super, lane, block);
  put_f16(super + 32, lane, block + 2);
  put_halves((target){super + 64, lane}, block + 4);
}

/* Scale and minimum of each group have 6 bits; the upper two of the last four groups lie above those of the first. */
static void pack_q4_k(const uint8_t *block, uint8_t *super, int lane) {
  const tg_quantization form = tg_quantization_of(TG_PACKED_Q4_K);
  const uint8_t *bits = block + 4, *numbers = block + 16;
  put_f16(super, lane, block);
  put_f16(super + 32, lane, block + 2);
  for (int g = 0; g < 8; g++) {
    uint8_t *group = super + form.header_bytes + g * form.group_bytes;
    uint8_t scale = bits[g] & 63, minimum = bits[g < 4 ? g + 4 : g] & 63;
    if (g >= 4) {
      scale = (uint8_t)((bits[g + 4] & 15) | bits[g - 4] >> 6 << 4);
      minimum = (uint8_t)(bits[g + 4] >> 4 | bits[g] >> 6 << 4);
    }
    group[lane] = scale;
    group[TG_PANEL + lane] = minimum;
    const int shift = g % 2 * 4; /* two groups share 32 bytes */
    for (int i = 0; i < 32; i++)
      put_nibble((target){group + form.numbers_at, lane}, i, numbers[g / 2 * 32 + i] >> shift & 15);
  }
}

static void pack_q6_k(const uint8_t *block, uint8_t *super, int lane) {
  const tg_quantization form = tg_quantization_of(TG_PACKED_Q6_K);
  const uint8_t *lower = block, *upper = block + 128, *scales = block + 192;
  put_f16(super, lane, block + 208);
  for (int input = 0; input < 256; input++) {
    /* In each half of 128: 32 bytes of `upper` hold four inputs each, 32 apart; 64 of `lower` hold two, 64 apart. */
    const int half = input / 128, quarter = input % 128 / 32, i = input % 32;
    const uint8_t nibble = lower[half * 64 + quarter % 2 * 32 + i] >> quarter / 2 * 4 & 15;
    const uint8_t top = upper[half * 32 + i] >> quarter * 2 & 3;
    uint8_t *group = super + form.header_bytes + input / 16 * form.group_bytes;
    group[lane] = scales[input / 16];
    const target to = {group + form.numbers_at, lane};
    put_nibble(to, input % 16, nibble);
    put_upper(to, input % 16, top);
  }
}

void tg_pack_row_of_blocks(int packing, int64_t k, const uint8_t *row, uint8_t *panel, int lane) {
  const tg_quantization form = tg_quantization_of(packing);
  const int64_t super_bytes = tg_size_of_panel(packing, form.inputs);
  for (int64_t input = 0; input < k; input += form.inputs, row += form.source_bytes, panel += super_bytes)
    switch (packing) {
      case TG_PACKED_Q8_0: pack_q8_0(row, panel, lane); break;
      case TG_PACKED_Q4_0: pack_q4_0(row, panel, lane); break;
      case TG_PACKED_Q4_1: pack_q4_1(row, panel, lane); break;
      case TG_PACKED_Q4_K: pack_q4_k(row, panel, lane); break;
      case TG_PACKED_Q6_K: pack_q6_k(row, panel, lane); break;
    }
}
