/* Token ids to rows of the embedding, which is the head's packed weight read the other way round. */
#include "kernels.h"
#include "simd.h"

static void embed(const tg_linear *head, int64_t token_id, float *y) {
  const int64_t k = head->k, first = (token_id / TG_PANEL) * TG_PANEL * k, lane = token_id % TG_PANEL;
  switch (head->packing) {
    case TG_PACKED_F32:
      for (int64_t i = 0; i < k; i++) y[i] = ((const float *)head->weight)[first + i * TG_PANEL + lane];
      break;
    case TG_PACKED_BF16:
      for (int64_t i = 0; i < k; i++) y[i] = from_bf16(((const uint16_t *)head->weight)[first + i * TG_PANEL + lane]);
      break;
    case TG_PACKED_BF16_PAIRS:
      for (int64_t i = 0; i < k; i += 2) {
        const uint16_t *pair = (const uint16_t *)head->weight + first + i * TG_PANEL + lane * 2;
        y[i] = from_bf16(pair[0]);
        y[i + 1] = from_bf16(pair[1]);
      }
      break;
  }
}

void TG_NAME(embed_kernel)(const tg_embed *op, tg_counter *counter) {
  int64_t begin, end;
  while (tg_take(counter, 1, op->m, &begin, &end))
    for (int64_t row = begin; row < end; row++) embed(op->head, op->token_ids[row], op->y + row * op->head->k);
}
