/* The whole C interface of the CPU kernels: plain structs and functions, no torch headers.
 *
 * `library.py` mirrors these structs for ctypes. Every pointer is borrowed for the length of a call. Nothing here
 * allocates memory per call, and nothing fails after `tg_start`: shapes are checked in Python, where an error has words.
 *
 * A row's bits never depend on the rows beside it: each output of a product sums over its inputs in ascending order,
 * and attention reduces a row's keys in ascending order, in spans that start at position 0.
 */
#ifndef TIDEGATE_CPU_H
#define TIDEGATE_CPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TG_API __attribute__((visibility("default")))

enum tg_dtype { TG_F32 = 0, TG_BF16 = 1 };

/* Outputs of one panel of a packed weight: one vector register of fp32. */
#define TG_PANEL 16
/* Keys that attention reduces together; part of its definition, see paged_attention_reference.py. */
#define TG_SPAN 256

/* How a packed weight lies in memory. A panel holds 16 outputs.
 *
 * A quantised weight stays as small as GGUF stores it, and gives the bits of its fp32 values packed as TG_PACKED_F32: the
 * kernels widen it in registers, or once for many rows. Its panels are made of groups of inputs, each with what widens
 * them; `quantized.h` has the layouts. `k` is a multiple of `tg_block_inputs`. */
enum tg_packing {
  TG_PACKED_F32 = 0,        /* float    [panels][k][16] */
  TG_PACKED_BF16 = 1,       /* bfloat16 [panels][k][16]; products in fp32 */
  TG_PACKED_BF16_PAIRS = 2, /* bfloat16 [panels][k / 2][16][2], k even; only avx512bf16 multiplies pairs of bfloat16 */
  TG_PACKED_Q8_0 = 3,       /* 32 inputs: 8 bits each, a scale */
  TG_PACKED_Q4_0 = 4,       /* 32 inputs: 4 bits each, a scale */
  TG_PACKED_Q4_1 = 5,       /* 32 inputs: 4 bits each, a scale and a minimum */
  TG_PACKED_Q4_K = 6,       /* 256 inputs: 4 bits each, a scale and a minimum of 6 bits for every 32 of them */
  TG_PACKED_Q6_K = 7,       /* 256 inputs: 6 bits each, a scale of 8 bits for every 16 of them */
};

/* One projection, `y = x @ weight + bias`. */
typedef struct {
  const void *weight; /* packed, 64-byte aligned */
  const float *bias;  /* [n], or NULL */
  int64_t n;          /* outputs; each half of them, or all, fill ceil(n / 16) panels */
  int64_t k;          /* inputs */
  int32_t packing;    /* enum tg_packing */
  int32_t is_halved;  /* panels alternate between the first and the second half of the outputs, for TG_SILU_MUL */
} tg_linear;

/* What a product does with its sums before it stores them. */
enum tg_epilogue {
  TG_STORE = 0,    /* y = sums */
  TG_ADD = 1,      /* y = y + sums, for the residual stream */
  TG_SILU_MUL = 2, /* panels alternate between gate and up; y = silu(gate) * up, n / 2 outputs */
};

typedef struct {
  const tg_linear *linear;
  const void *x; /* [m][k], row stride `x_stride` elements; bfloat16 for TG_PACKED_BF16_PAIRS, else fp32 */
  void *y;       /* [m][n], or [m][n / 2]; row stride `y_stride` elements; fp32 for TG_ADD */
  int64_t m, x_stride, y_stride;
  int32_t epilogue; /* enum tg_epilogue */
  int32_t y_dtype;  /* enum tg_dtype */
} tg_gemm;

typedef struct {
  const float *x;      /* [m][n], or those of its rows that `rows` names */
  const int64_t *rows; /* [m], or NULL for all in order */
  const float *weight; /* [n] */
  void *y;             /* [m][n] */
  int64_t m, n, x_stride, y_stride;
  float eps;
  int32_t y_dtype;
} tg_rms_norm;

/* Rotates the queries in place, and writes rotated keys and values into their slots of the cache.
 *
 * The cache of one layer, `[blocks][2][kv_heads][...]` with `block_stride` elements from block to block. Inside a block
 * and KV head, keys lie as `[head_dim][block_size]`, so that one vector holds a dimension of neighbouring keys; values
 * lie as `[block_size][head_dim]`. */
typedef struct {
  float *qkv; /* [num_tokens][(num_q_heads + 2 * num_kv_heads) * head_dim], row stride `qkv_stride` */
  void *kv_cache;
  const float *cos, *sin;        /* [positions][head_dim / 2] */
  const int64_t *positions;      /* [num_tokens] */
  const int64_t *slot_mapping;   /* [num_tokens], block * block_size + offset */
  int64_t num_tokens, qkv_stride, block_stride;
  int32_t num_q_heads, num_kv_heads, head_dim, block_size;
  int32_t kv_dtype; /* enum tg_dtype */
  int32_t reserved;
} tg_rope_store;

typedef struct {
  const float *query; /* [num_tokens][num_q_heads][head_dim], row stride `query_stride` */
  void *out;          /* [num_tokens][num_q_heads][head_dim], row stride `out_stride` */
  const void *kv_cache;
  const int32_t *block_table; /* [num_requests], row stride `table_stride` */
  const int32_t *query_start; /* [num_requests + 1] */
  const int32_t *context_len; /* [num_requests] */
  int64_t query_stride, out_stride, block_stride, table_stride;
  int32_t num_requests, num_q_heads, num_kv_heads, head_dim, block_size;
  int32_t kv_dtype, out_dtype;
  int32_t window;  /* keys a query sees, itself included; 0: all */
  float scale;
  float soft_cap; /* scores become cap * tanh(score / cap); 0: none */
} tg_attention;

/* Rows of the embedding, packed as if it were a head: y[i] = output token_ids[i] of the weight. */
typedef struct {
  const tg_linear *embedding;
  const int64_t *token_ids; /* [m] */
  float *y;                 /* [m][k] */
  int64_t m;
} tg_embed;

/* The first index of each row's maximum, and the maximum itself (NaN where the row holds a NaN). */
typedef struct {
  const float *x; /* [m][n] */
  int64_t *index; /* [m] */
  float *maximum; /* [m] */
  int64_t m, n, x_stride;
} tg_argmax;

/* In place of a token: the thread got no memory to work in. */
#define TG_NO_MEMORY (-1)

/* One draw: a token of a row, by its weight under the parameters; see sampler_reference.py, which defines it. */
typedef struct {
  const float *x;    /* [n] logits */
  double random;     /* in [0, 1): in whose share of the weight it falls, that token is drawn */
  double top_p;      /* in (0, 1]; 1: all */
  int64_t top_k;     /* the most probable tokens that are kept; 0: all */
  float maximum;     /* of x; it and its quotient by the temperature are finite */
  float temperature; /* above 0 */
} tg_draw_row;

typedef struct {
  const tg_draw_row *rows; /* [m] */
  int64_t *token_ids;      /* [m], or TG_NO_MEMORY; a thread works in 20 bytes a token of the vocabulary */
  int64_t m, n;
} tg_draw;

/* Natural logarithms of the softmax of a row: of one token, and of the `num_top` largest, equal ones by rising index. */
typedef struct {
  const float *x; /* [n] logits */
  int64_t token_id;
  int64_t num_top; /* n at most */
  float maximum;   /* of x, finite */
  int32_t reserved;
} tg_logprobs_row;

typedef struct {
  const tg_logprobs_row *rows; /* [m] */
  float *logprobs;             /* [m], NaN where the thread got no memory to work in */
  int64_t *top_ids;            /* [m][num_top], row stride `top_stride` */
  float *top_logprobs;         /* [m][num_top], the same */
  int64_t m, n, top_stride;
} tg_logprobs;

/* A pre-norm decoder layer. */
typedef struct {
  const float *attention_norm, *mlp_norm; /* [hidden_size] */
  tg_linear qkv[3]; /* one for queries, keys and values together, or several where their packings differ */
  tg_linear attention_out, gate_up, down;
  int64_t num_qkv; /* how many of `qkv` there are */
} tg_layer;

/* A whole decoder, which a step goes through in one call: after a layer's weights have passed, the caches hold nothing of
 * the caller's any more, and a call from Python for each layer cost 30 microseconds. */
typedef struct {
  const tg_layer *layers; /* [num_layers] */
  const tg_linear *embedding; /* hidden_size inputs, one output a token; the head itself where it is tied */
  const tg_linear *head;
  const float *final_norm;  /* [hidden_size] */
  const float *cos, *sin;   /* [positions][head_dim / 2] */
  int64_t num_layers;
  int32_t hidden_size, num_q_heads, num_kv_heads, head_dim;
  int32_t x_dtype;  /* enum tg_dtype: what the layers' packing reads */
  float eps, scale;
} tg_model;

typedef struct {
  const int64_t *token_ids;    /* [num_tokens] */
  const int64_t *positions;    /* [num_tokens] */
  const int64_t *slot_mapping; /* [num_tokens] */
  const int32_t *block_table;  /* [num_requests], row stride `table_stride` */
  const int32_t *query_start;  /* [num_requests + 1] */
  const int32_t *context_len;  /* [num_requests] */
  const int64_t *sampled_rows; /* [num_sampled], which tokens get logits */
  void *kv_cache;              /* the first layer's; the others' follow `layer_stride` elements apart */
  float *hidden;               /* [num_tokens][hidden_size], the residual stream */
  void *normed;                /* [num_tokens][hidden_size] of x_dtype, as the next two */
  float *qkv;                  /* [num_tokens][q_size + 2 * kv_size] */
  void *attended;              /* [num_tokens][q_size] */
  void *gated;                 /* [num_tokens][intermediate] */
  float *logits;               /* [num_sampled][outputs of the head] */
  int64_t num_tokens, num_requests, num_sampled, table_stride, block_stride, layer_stride;
  int32_t block_size;
  int32_t kv_dtype; /* enum tg_dtype */
} tg_step;

/* Starts the pool and chooses the kernels; again with other values ends the old pool first.
 *
 * isa: "avx2", "avx512", "avx512bf16", or NULL for the best that this processor has.
 * cpus: [num_threads] to pin each thread to one, the caller's being the first; NULL pins none.
 * Returns 0, or -1 where the processor lacks the instructions, -2 where a thread cannot be started. */
TG_API int tg_start(const char *isa, int num_threads, const int *cpus);
TG_API void tg_stop(void);
TG_API const char *tg_isa(void);    /* the chosen one, or NULL */
TG_API int tg_supports(const char *isa); /* 1 where this processor can run it */

TG_API void tg_run_gemm(const tg_gemm *op);
TG_API void tg_run_rms_norm(const tg_rms_norm *op);
TG_API void tg_run_rope_store(const tg_rope_store *op);
TG_API void tg_run_attention(const tg_attention *op);
TG_API void tg_run_embed(const tg_embed *op);
TG_API void tg_run_argmax(const tg_argmax *op);
TG_API void tg_run_draw(const tg_draw *op);
TG_API void tg_run_logprobs(const tg_logprobs *op);
TG_API void tg_run_model(const tg_model *model, const tg_step *step);

/* Some outputs of a weight, as a checkpoint stores them. */
typedef struct {
  const tg_linear *linear; /* where they go; lanes that no output fills keep what they hold */
  const void *source;      /* numbers of `dtype`; or rows of whole GGUF blocks of the linear's packing */
  int64_t first, count;    /* outputs [first, first + count) of the linear */
  int64_t input_stride;    /* from an input to the next, in elements; of no use to rows of blocks */
  int64_t output_stride;   /* from an output to the next, in elements; in bytes for rows of blocks */
  int32_t dtype;           /* enum tg_dtype; of no use to rows of blocks */
  int32_t reserved;
} tg_part;

/* Lays some outputs of a weight out in its panels. */
TG_API void tg_pack(const tg_part *part);

TG_API int64_t tg_panel_bytes(int32_t packing, int64_t k); /* of one panel; all panels follow each other */
TG_API int64_t tg_block_inputs(int32_t packing);           /* what `k` is a multiple of */
TG_API int64_t tg_block_bytes(int32_t packing);            /* of one GGUF block of a row; 0 for numbers */

#ifdef __cplusplus
}
#endif
#endif
