#ifndef TIDEGATE_MODEL_H
#define TIDEGATE_MODEL_H

#include "kernels.h"

/* A step through a whole decoder, on all threads of the pool. */
void tg_model_on_pool(const tg_kernels *kernels, const tg_model *model, const tg_step *step);

#endif
