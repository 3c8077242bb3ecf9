/* The kernels of one instruction set, and how their names are told apart. Each file of kernels is compiled once a set.
 *
 * A kernel takes tasks from the counter until none are left, so that a thread that the machine holds up gets fewer. */
#ifndef TIDEGATE_KERNELS_H
#define TIDEGATE_KERNELS_H

#include "packing.h"
#include "pool.h"
#include "tidegate_cpu.h"

typedef struct {
  void (*gemm)(const tg_gemm *, tg_counter *);
  void (*rms_norm)(const tg_rms_norm *, tg_counter *);
  void (*rope_store)(const tg_rope_store *, tg_counter *);
  void (*attention)(const tg_attention *, tg_counter *);
  void (*embed)(const tg_embed *, tg_counter *);
  void (*argmax)(const tg_argmax *, tg_counter *);
  void (*draw)(const tg_draw *, tg_counter *);
  void (*logprobs)(const tg_logprobs *, tg_counter *);
} tg_kernels;

#define TG_JOIN_(a, b) a##_##b
#define TG_JOIN(a, b) TG_JOIN_(a, b)
/* TG_ISA is avx2, avx512 or avx512bf16, set by the build. */
#define TG_NAME(name) TG_JOIN(tg_##name, TG_ISA)

#define TG_DECLARE(isa)                                                  \
  void tg_gemm_kernel_##isa(const tg_gemm *, tg_counter *);              \
  void tg_rms_norm_kernel_##isa(const tg_rms_norm *, tg_counter *);      \
  void tg_rope_store_kernel_##isa(const tg_rope_store *, tg_counter *);  \
  void tg_attention_kernel_##isa(const tg_attention *, tg_counter *);    \
  void tg_embed_kernel_##isa(const tg_embed *, tg_counter *);            \
  void tg_argmax_kernel_##isa(const tg_argmax *, tg_counter *);          \
  void tg_draw_kernel_##isa(const tg_draw *, tg_counter *);              \
  void tg_logprobs_kernel_##isa(const tg_logprobs *, tg_counter *);
TG_DECLARE(avx2)
TG_DECLARE(avx512)
TG_DECLARE(avx512bf16)

#endif
