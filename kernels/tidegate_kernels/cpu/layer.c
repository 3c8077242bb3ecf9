/* A decoder layer as one visit to the pool: its ops follow each other with a barrier between them. */
#include "layer.h"

enum { NUM_PHASES = 8 };

typedef struct {
  tg_counter counters[NUM_PHASES];
  const tg_kernels *kernels;
  tg_rms_norm attention_norm, mlp_norm;
  tg_gemm qkv, attention_out, gate_up, down;
  tg_rope_store rope_store;
  tg_attention attention;
} layer_call;

static void run(void *arg) {
  layer_call *call = arg;
  const tg_kernels *kernels = call->kernels;
  tg_counter *counter = call->counters;
  kernels->rms_norm(&call->attention_norm, counter++);
  tg_pool_barrier();
  kernels->gemm(&call->qkv, counter++);
  tg_pool_barrier();
  kernels->rope_store(&call->rope_store, counter++);
  tg_pool_barrier();
  kernels->attention(&call->attention, counter++);
  tg_pool_barrier();
  kernels->gemm(&call->attention_out, counter++);
  tg_pool_barrier();
  kernels->rms_norm(&call->mlp_norm, counter++);
  tg_pool_barrier();
  kernels->gemm(&call->gate_up, counter++);
  tg_pool_barrier();
  kernels->gemm(&call->down, counter++);
}

static tg_rms_norm norm(const tg_step *step, const float *weight) {
  return (tg_rms_norm){.x = step->hidden, .weight = weight, .y = step->normed, .m = step->num_tokens,
                       .n = step->hidden_size, .x_stride = step->hidden_size, .y_stride = step->hidden_size,
                       .eps = step->eps, .y_dtype = step->x_dtype};
}

static tg_gemm product(const tg_step *step, const tg_linear *linear, const void *x, void *y, int epilogue, int y_dtype) {
  const int64_t num_outputs = epilogue == TG_SILU_MUL ? linear->n / 2 : linear->n;
  return (tg_gemm){.linear = linear, .x = x, .y = y, .m = step->num_tokens, .x_stride = linear->k,
                   .y_stride = num_outputs, .epilogue = epilogue, .y_dtype = y_dtype};
}

void tg_layer_on_pool(const tg_kernels *kernels, const tg_layer *layer, const tg_step *step) {
  const int64_t qkv_stride = layer->qkv.n, q_size = (int64_t)step->num_q_heads * step->head_dim;
  layer_call call = {
      .kernels = kernels,
      .attention_norm = norm(step, layer->attention_norm),
      .qkv = product(step, &layer->qkv, step->normed, step->qkv, TG_STORE, TG_F32),
      .rope_store = {.qkv = step->qkv, .kv_cache = step->kv_cache, .cos = step->cos, .sin = step->sin,
                     .positions = step->positions, .slot_mapping = step->slot_mapping,
                     .num_tokens = step->num_tokens, .qkv_stride = qkv_stride, .block_stride = step->block_stride,
                     .num_q_heads = step->num_q_heads, .num_kv_heads = step->num_kv_heads,
                     .head_dim = step->head_dim, .block_size = step->block_size, .kv_dtype = step->kv_dtype},
      .attention = {.query = step->qkv, .out = step->attended, .kv_cache = step->kv_cache,
                    .block_table = step->block_table, .query_start = step->query_start,
                    .context_len = step->context_len, .query_stride = qkv_stride, .out_stride = q_size,
                    .block_stride = step->block_stride, .table_stride = step->table_stride,
                    .num_requests = (int32_t)step->num_requests, .num_q_heads = step->num_q_heads,
                    .num_kv_heads = step->num_kv_heads, .head_dim = step->head_dim, .block_size = step->block_size,
                    .kv_dtype = step->kv_dtype, .out_dtype = step->x_dtype, .window = step->window,
                    .scale = step->scale, .soft_cap = step->soft_cap},
      .attention_out = product(step, &layer->attention_out, step->attended, step->hidden, TG_ADD, TG_F32),
      .mlp_norm = norm(step, layer->mlp_norm),
      .gate_up = product(step, &layer->gate_up, step->normed, step->gated, TG_SILU_MUL, step->x_dtype),
      .down = product(step, &layer->down, step->gated, step->hidden, TG_ADD, TG_F32),
  };
  tg_pool_run(run, &call);
}
