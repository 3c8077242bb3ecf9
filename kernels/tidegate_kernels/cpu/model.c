/* A step through a decoder as one visit to the pool: its ops follow each other with a barrier between them. */
#include "model.h"

/* Ops at a barrier's distance never take tasks at once, so three counters go round: an op's own, the one before it, which
 * some thread may still look at, and the next one's, which this op's threads zero. */
enum { NUM_COUNTERS = 3 };

typedef struct {
  tg_counter counters[NUM_COUNTERS];
  const tg_kernels *kernels;
  const tg_model *model;
  const tg_step *step;
} model_call;

/* Where a thread is in the run of ops. */
typedef struct {
  model_call *call;
  int phase;
} thread_place;

/* Waits for the op before, and gives the counter of the next. */
static tg_counter *next_op(thread_place *place) {
  if (place->phase > 0) tg_pool_barrier();
  tg_counter *counters = place->call->counters;
  const int phase = place->phase++;
  atomic_store_explicit(&counters[(phase + 1) % NUM_COUNTERS].next, 0, memory_order_relaxed);
  return &counters[phase % NUM_COUNTERS];
}

static void normalise(thread_place *place, const float *weight, const int64_t *rows, int64_t num_rows) {
  const tg_model *model = place->call->model;
  const tg_step *step = place->call->step;
  const tg_rms_norm op = {.x = step->hidden, .rows = rows, .weight = weight, .y = step->normed, .m = num_rows,
                          .n = model->hidden_size, .x_stride = model->hidden_size, .y_stride = model->hidden_size,
                          .eps = model->eps, .y_dtype = model->x_dtype};
  place->call->kernels->rms_norm(&op, next_op(place));
}

static void multiply(thread_place *place, const tg_linear *linear, const void *x, void *y, int64_t num_rows, int epilogue,
                     int y_dtype) {
  const tg_gemm op = {.linear = linear, .x = x, .y = y, .m = num_rows, .x_stride = linear->k,
                      .y_stride = epilogue == TG_SILU_MUL ? linear->n / 2 : linear->n, .epilogue = epilogue,
                      .y_dtype = y_dtype};
  place->call->kernels->gemm(&op, next_op(place));
}

/* Queries, keys and values beside each other, from as many projections as they take. */
static int64_t project_qkv(thread_place *place, const tg_layer *layer) {
  const tg_step *step = place->call->step;
  int64_t width = 0, first = 0;
  for (int i = 0; i < layer->num_qkv; i++) width += layer->qkv[i].n;
  for (int i = 0; i < layer->num_qkv; first += layer->qkv[i++].n) {
    const tg_gemm op = {.linear = &layer->qkv[i], .x = step->normed, .y = step->qkv + first, .m = step->num_tokens,
                        .x_stride = layer->qkv[i].k, .y_stride = width, .epilogue = TG_STORE, .y_dtype = TG_F32};
    place->call->kernels->gemm(&op, next_op(place));
  }
  return width;
}

static void attend(thread_place *place, int64_t qkv_width, void *kv_cache) {
  const tg_model *model = place->call->model;
  const tg_step *step = place->call->step;
  const tg_kernels *kernels = place->call->kernels;
  const int64_t q_size = (int64_t)model->num_q_heads * model->head_dim;
  const tg_rope_store rope_store = {
      .qkv = step->qkv, .kv_cache = kv_cache, .cos = model->cos, .sin = model->sin, .positions = step->positions,
      .slot_mapping = step->slot_mapping, .num_tokens = step->num_tokens, .qkv_stride = qkv_width,
      .block_stride = step->block_stride, .num_q_heads = model->num_q_heads, .num_kv_heads = model->num_kv_heads,
      .head_dim = model->head_dim, .block_size = step->block_size, .kv_dtype = step->kv_dtype};
  const tg_attention attention = {
      .query = step->qkv, .out = step->attended, .kv_cache = kv_cache, .block_table = step->block_table,
      .query_start = step->query_start, .context_len = step->context_len, .query_stride = qkv_width,
      .out_stride = q_size, .block_stride = step->block_stride, .table_stride = step->table_stride,
      .num_requests = (int32_t)step->num_requests, .num_q_heads = model->num_q_heads,
      .num_kv_heads = model->num_kv_heads, .head_dim = model->head_dim, .block_size = step->block_size,
      .kv_dtype = step->kv_dtype, .out_dtype = model->x_dtype, .scale = model->scale};
  kernels->rope_store(&rope_store, next_op(place));
  kernels->attention(&attention, next_op(place));
}

static void run(void *arg) {
  model_call *call = arg;
  const tg_model *model = call->model;
  const tg_step *step = call->step;
  const int64_t num_tokens = step->num_tokens;
  thread_place place = {call, 0};
  const tg_embed embed = {model->embedding, step->token_ids, step->hidden, num_tokens};
  call->kernels->embed(&embed, next_op(&place));
  for (int64_t i = 0; i < model->num_layers; i++) {
    const tg_layer *layer = &model->layers[i];
    char *kv_cache = (char *)step->kv_cache + i * step->layer_stride * (step->kv_dtype == TG_BF16 ? 2 : 4);
    normalise(&place, layer->attention_norm, 0, num_tokens);
    attend(&place, project_qkv(&place, layer), kv_cache);
    multiply(&place, &layer->attention_out, step->attended, step->hidden, num_tokens, TG_ADD, TG_F32);
    normalise(&place, layer->mlp_norm, 0, num_tokens);
    multiply(&place, &layer->gate_up, step->normed, step->gated, num_tokens, TG_SILU_MUL, model->x_dtype);
    multiply(&place, &layer->down, step->gated, step->hidden, num_tokens, TG_ADD, TG_F32);
  }
  if (step->num_sampled > 0) { /* none where a step computes chunks of prompts only */
    normalise(&place, model->final_norm, step->sampled_rows, step->num_sampled);
    multiply(&place, model->head, step->normed, step->logits, step->num_sampled, TG_STORE, TG_F32);
  }
}

void tg_model_on_pool(const tg_kernels *kernels, const tg_model *model, const tg_step *step) {
  model_call call = {.kernels = kernels, .model = model, .step = step};
  tg_pool_run(run, &call);
}
