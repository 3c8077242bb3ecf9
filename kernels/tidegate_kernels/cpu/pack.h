#ifndef TIDEGATE_PACK_H
#define TIDEGATE_PACK_H

#include "kernels.h"

void tg_pack_kernel(const tg_part *part, tg_counter *counter);

/* One output of a quantised linear: a row of GGUF blocks into its lane. */
void tg_pack_row_of_blocks(int packing, int64_t k, const uint8_t *row, uint8_t *panel, int lane);

#endif
