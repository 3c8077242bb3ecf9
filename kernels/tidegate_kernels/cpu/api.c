/* What the library exports: the choice of instruction set, and each op on the pool. */
#include <stddef.h>
#include <string.h>

#include "kernels.h"
#include "model.h"
#include "pack.h"

#define KERNELS(isa)                                                                                              \
  {tg_gemm_kernel_##isa,      tg_rms_norm_kernel_##isa, tg_rope_store_kernel_##isa, tg_attention_kernel_##isa,     \
   tg_embed_kernel_##isa,     tg_argmax_kernel_##isa,   tg_draw_kernel_##isa,       tg_logprobs_kernel_##isa}

/* Every processor with AVX2 has F16C too, which older compilers cannot ask for. */
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool has_avx512(void) {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#ifdef TG_HAS_AVX512BF16
static bool has_avx512bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

static bool always(void) { return true; }
#ifdef TG_HAS_AVX512BF16
/* Intel's cores multiply pairs of bfloat16 at half the rate at which they do it in fp32 (measured: 150 against 256
 * GFLOP/s on two cores of family 6 model 207). AMD's do it at twice the rate. */
static bool on_amd(void) { return __builtin_cpu_is("amd"); }
#endif

static const struct {
  const char *name;
  bool (*is_supported)(void);
  bool (*is_worth_it)(void); /* where nobody asks for one by name */
  tg_kernels kernels;
} variants[] = {
    /* the best first */
#ifdef TG_HAS_AVX512BF16
    {"avx512bf16", has_avx512bf16, on_amd, KERNELS(avx512bf16)},
#endif
    {"avx512", has_avx512, always, KERNELS(avx512)},
    {"avx2", has_avx2, always, KERNELS(avx2)},
};
enum { NUM_VARIANTS = sizeof variants / sizeof *variants };

static int chosen = -1;

int tg_supports(const char *isa) {
  for (int i = 0; i < NUM_VARIANTS; i++)
    if (strcmp(variants[i].name, isa) == 0) return variants[i].is_supported();
  return 0;
}

int tg_start(const char *isa, int num_threads, const int *cpus) {
  int found = -1;
  for (int i = 0; i < NUM_VARIANTS && found < 0; i++)
    if ((isa == NULL ? variants[i].is_worth_it() : strcmp(variants[i].name, isa) == 0) && variants[i].is_supported())
      found = i;
  if (found < 0) return -1;
  if (tg_pool_start(num_threads, cpus) != 0) return -2;
  chosen = found;
  return 0;
}

void tg_stop(void) {
  tg_pool_stop();
  chosen = -1;
}

const char *tg_isa(void) { return chosen < 0 ? NULL : variants[chosen].name; }

/* Each op alone: the counter beside it, and one visit to the pool. */
#define RUN(op)                                                                              \
  typedef struct {                                                                           \
    tg_counter counter;                                                                      \
    const tg_##op *op;                                                                       \
  } op##_call;                                                                               \
  static void op##_body(void *arg) {                                                         \
    op##_call *call = arg;                                                                   \
    variants[chosen].kernels.op(call->op, &call->counter);                                   \
  }                                                                                          \
  void tg_run_##op(const tg_##op *op) {                                                      \
    op##_call call = {.op = op};                                                             \
    tg_pool_run(op##_body, &call);                                                           \
  }

RUN(gemm)
RUN(rms_norm)
RUN(rope_store)
RUN(attention)
RUN(embed)
RUN(argmax)
RUN(draw)
RUN(logprobs)

void tg_run_model(const tg_model *model, const tg_step *step) {
  tg_model_on_pool(&variants[chosen].kernels, model, step);
}

typedef struct {
  tg_counter counter;
  const tg_part *part;
} pack_call;

static void pack_body(void *arg) {
  pack_call *call = arg;
  tg_pack_kernel(call->part, &call->counter);
}

void tg_pack(const tg_part *part) {
  pack_call call = {.part = part};
  tg_pool_run(pack_body, &call);
}

int64_t tg_panel_bytes(int32_t packing, int64_t k) { return tg_size_of_panel(packing, k); }
int64_t tg_block_inputs(int32_t packing) { return tg_quantization_of(packing).inputs; }
int64_t tg_block_bytes(int32_t packing) { return tg_quantization_of(packing).source_bytes; }
