/* Token ids to rows of the embedding, which is packed like a head and read the other way round. */
#include "kernels.h"
#include "quantized.h"
#include "simd.h"

static void embed(const tg_linear *embedding, int64_t token_id, float *y) {
  const int64_t k = embedding->k;
  const int lane = (int)(token_id % TG_PANEL);
  const char *panel = (const char *)embedding->weight + token_id / TG_PANEL * tg_size_of_panel(embedding->packing, k);
  switch (embedding->packing) {
    case TG_PACKED_F32:
      for (int64_t i = 0; i < k; i++) y[i] = ((const float *)panel)[i * TG_PANEL + lane];
      break;
    case TG_PACKED_BF16:
      for (int64_t i = 0; i < k; i++) y[i] = from_bf16(((const uint16_t *)panel)[i * TG_PANEL + lane]);
      break;
    case TG_PACKED_BF16_PAIRS:
      for (int64_t i = 0; i < k; i += 2) {
        const uint16_t *pair = (const uint16_t *)panel + i * TG_PANEL + lane * 2;
        y[i] = from_bf16(pair[0]);
        y[i + 1] = from_bf16(pair[1]);
      }
      break;
    default: /* all sixteen lanes are widened for one, which takes a microsecond */
      widen_panel(embedding->packing, (const uint8_t *)panel, k, lane, y);
  }
}

void TG_NAME(embed_kernel)(const tg_embed *op, tg_counter *counter) {
  int64_t begin, end;
  while (tg_take(counter, 1, op->m, &begin, &end))
    for (int64_t row = begin; row < end; row++) embed(op->embedding, op->token_ids[row], op->y + row * op->embedding->k);
}
