#ifndef TIDEGATE_PACK_H
#define TIDEGATE_PACK_H

#include "kernels.h"

typedef struct {
  const tg_linear *linear;
  const void *source; /* [k][n], row stride `stride` elements of `dtype` */
  int64_t stride;
  int32_t dtype;
} tg_pack_op;

void tg_pack_kernel(const tg_pack_op *op, tg_counter *counter);

#endif
