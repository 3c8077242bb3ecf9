#ifndef TIDEGATE_LAYER_H
#define TIDEGATE_LAYER_H

#include "kernels.h"

/* A pre-norm decoder layer on all threads of the pool. */
void tg_layer_on_pool(const tg_kernels *kernels, const tg_layer *layer, const tg_step *step);

#endif
