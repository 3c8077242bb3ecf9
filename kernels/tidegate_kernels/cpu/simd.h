/* Sixteen fp32 numbers at a time, on whichever registers the instruction set has. */
#ifndef TIDEGATE_SIMD_H
#define TIDEGATE_SIMD_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "tidegate_cpu.h"

#define TG_INLINE static inline __attribute__((always_inline))

#ifdef __AVX512F__

typedef __m512 vec;

TG_INLINE __m256 vec_low(vec v) { return _mm512_castps512_ps256(v); }
TG_INLINE __m256 vec_high(vec v) { return _mm512_extractf32x8_ps(v, 1); }
TG_INLINE vec vec_zero(void) { return _mm512_setzero_ps(); }
TG_INLINE vec vec_set(float x) { return _mm512_set1_ps(x); }
TG_INLINE vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
TG_INLINE void vec_store(float *p, vec v) { _mm512_storeu_ps(p, v); }
TG_INLINE vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
TG_INLINE vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
TG_INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
TG_INLINE vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
TG_INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); } /* a * b + c */
TG_INLINE vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
TG_INLINE vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }
TG_INLINE vec vec_round(vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TG_INLINE vec vec_floor(vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
TG_INLINE int vec_any_nan(vec a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
TG_INLINE uint32_t vec_at_least(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); } /* a bit a lane */
/* 2 ** n for whole n in [-126, 127] */
TG_INLINE vec vec_exp2_whole(vec n) {
  __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return _mm512_castsi512_ps(bits);
}
TG_INLINE vec vec_load_bf16(const uint16_t *p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
TG_INLINE void vec_store_bf16(uint16_t *p, vec v) { /* to the nearest, ties to even; NaN stays NaN */
  __m512i bits = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(rounded));
}
TG_INLINE vec vec_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

/* Sixteen whole numbers of 32 bits, from bytes. */
typedef __m512i ivec;

TG_INLINE ivec ivec_load_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
TG_INLINE ivec ivec_load_i8(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
TG_INLINE ivec ivec_and(ivec a, int mask) { return _mm512_and_si512(a, _mm512_set1_epi32(mask)); }
TG_INLINE ivec ivec_or(ivec a, ivec b) { return _mm512_or_si512(a, b); }
TG_INLINE ivec ivec_add(ivec a, int b) { return _mm512_add_epi32(a, _mm512_set1_epi32(b)); }
TG_INLINE ivec ivec_shift_right(ivec a, int bits) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(bits)); }
TG_INLINE ivec ivec_shift_left(ivec a, int bits) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(bits)); }
TG_INLINE vec vec_from_ivec(ivec a) { return _mm512_cvtepi32_ps(a); }

/* The first `count` lanes; the others are zero. */
TG_INLINE vec vec_load_first(const float *p, int count) {
  return _mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), p);
}
TG_INLINE void vec_store_first(float *p, vec v, int count) {
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << count) - 1), v);
}
TG_INLINE vec vec_load_bf16_first(const uint16_t *p, int count) {
  uint16_t lanes[16] = {0};
  memcpy(lanes, p, (size_t)count * sizeof(uint16_t));
  return vec_load_bf16(lanes);
}

#else /* AVX2 and FMA */

typedef struct {
  __m256 lo, hi;
} vec;

TG_INLINE vec vec_pair(__m256 lo, __m256 hi) { vec v = {lo, hi}; return v; }
TG_INLINE __m256 vec_low(vec v) { return v.lo; }
TG_INLINE __m256 vec_high(vec v) { return v.hi; }
TG_INLINE vec vec_zero(void) { return vec_pair(_mm256_setzero_ps(), _mm256_setzero_ps()); }
TG_INLINE vec vec_set(float x) { __m256 v = _mm256_set1_ps(x); return vec_pair(v, v); }
TG_INLINE vec vec_load(const float *p) { return vec_pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
TG_INLINE void vec_store(float *p, vec v) { _mm256_storeu_ps(p, v.lo); _mm256_storeu_ps(p + 8, v.hi); }
TG_INLINE vec vec_add(vec a, vec b) { return vec_pair(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)); }
TG_INLINE vec vec_sub(vec a, vec b) { return vec_pair(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)); }
TG_INLINE vec vec_mul(vec a, vec b) { return vec_pair(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)); }
TG_INLINE vec vec_div(vec a, vec b) { return vec_pair(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)); }
TG_INLINE vec vec_fma(vec a, vec b, vec c) {
  return vec_pair(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
TG_INLINE vec vec_max(vec a, vec b) { return vec_pair(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)); }
TG_INLINE vec vec_min(vec a, vec b) { return vec_pair(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)); }
TG_INLINE vec vec_round(vec a) {
  return vec_pair(_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                  _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TG_INLINE vec vec_floor(vec a) {
  return vec_pair(_mm256_round_ps(a.lo, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC),
                  _mm256_round_ps(a.hi, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
}
TG_INLINE uint32_t vec_at_least(vec a, vec b) {
  return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ)) |
         (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)) << 8;
}
TG_INLINE int vec_any_nan(vec a) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))) != 0;
}
TG_INLINE __m256 half_exp2_whole(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
TG_INLINE vec vec_exp2_whole(vec n) { return vec_pair(half_exp2_whole(n.lo), half_exp2_whole(n.hi)); }
TG_INLINE __m256 half_load_bf16(const uint16_t *p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
TG_INLINE vec vec_load_bf16(const uint16_t *p) { return vec_pair(half_load_bf16(p), half_load_bf16(p + 8)); }
TG_INLINE __m256i half_to_bf16(__m256 v) {
  __m256i bits = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
}
TG_INLINE void vec_store_bf16(uint16_t *p, vec v) {
  __m256i packed = _mm256_packus_epi32(half_to_bf16(v.lo), half_to_bf16(v.hi));
  _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
TG_INLINE vec vec_load_f16(const uint16_t *p) {
  return vec_pair(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}

typedef struct {
  __m256i lo, hi;
} ivec;

TG_INLINE ivec ivec_pair(__m256i lo, __m256i hi) { ivec v = {lo, hi}; return v; }
TG_INLINE ivec ivec_load_u8(const uint8_t *p) {
  return ivec_pair(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                   _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))));
}
TG_INLINE ivec ivec_load_i8(const uint8_t *p) {
  return ivec_pair(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                   _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))));
}
TG_INLINE ivec ivec_and(ivec a, int mask) {
  const __m256i m = _mm256_set1_epi32(mask);
  return ivec_pair(_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m));
}
TG_INLINE ivec ivec_or(ivec a, ivec b) { return ivec_pair(_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)); }
TG_INLINE ivec ivec_add(ivec a, int b) {
  const __m256i v = _mm256_set1_epi32(b);
  return ivec_pair(_mm256_add_epi32(a.lo, v), _mm256_add_epi32(a.hi, v));
}
TG_INLINE ivec ivec_shift_right(ivec a, int bits) {
  const __m128i n = _mm_cvtsi32_si128(bits);
  return ivec_pair(_mm256_srl_epi32(a.lo, n), _mm256_srl_epi32(a.hi, n));
}
TG_INLINE ivec ivec_shift_left(ivec a, int bits) {
  const __m128i n = _mm_cvtsi32_si128(bits);
  return ivec_pair(_mm256_sll_epi32(a.lo, n), _mm256_sll_epi32(a.hi, n));
}
TG_INLINE vec vec_from_ivec(ivec a) { return vec_pair(_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)); }

TG_INLINE vec vec_load_first(const float *p, int count) {
  float lanes[16] = {0};
  memcpy(lanes, p, (size_t)count * sizeof(float));
  return vec_load(lanes);
}
TG_INLINE void vec_store_first(float *p, vec v, int count) {
  float lanes[16];
  vec_store(lanes, v);
  memcpy(p, lanes, (size_t)count * sizeof(float));
}
TG_INLINE vec vec_load_bf16_first(const uint16_t *p, int count) {
  uint16_t lanes[16] = {0};
  memcpy(lanes, p, (size_t)count * sizeof(uint16_t));
  return vec_load_bf16(lanes);
}

#endif

TG_INLINE void vec_store_bf16_first(uint16_t *p, vec v, int count) {
  uint16_t lanes[16];
  vec_store_bf16(lanes, v);
  memcpy(p, lanes, (size_t)count * sizeof(uint16_t));
}

/* The first `count` lanes to element `i` of an array of `dtype`, an enum tg_dtype. */
TG_INLINE void vec_store_as(void *p, int64_t i, vec v, int count, int dtype) {
  if (dtype == TG_BF16) {
    if (count == 16) vec_store_bf16((uint16_t *)p + i, v);
    else vec_store_bf16_first((uint16_t *)p + i, v, count);
  } else {
    if (count == 16) vec_store((float *)p + i, v);
    else vec_store_first((float *)p + i, v, count);
  }
}

/* One bfloat16 as fp32. */
TG_INLINE float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

/* Sum and maximum over the lanes, always in the same order: lane i with lane i + 8, then 4, 2, 1. By shuffles: a loop
 * over an array stays in memory, with branches, and attention does it twice for a row and a span. */
TG_INLINE float vec_sum_lanes(vec v) {
  __m256 eight = _mm256_add_ps(vec_low(v), vec_high(v));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
TG_INLINE float vec_max_lanes(vec v) {
  __m256 eight = _mm256_max_ps(vec_low(v), vec_high(v));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Sixteen doubles, which sums of many numbers are kept in. */
typedef struct {
  __m256d q[4];
} wide;

TG_INLINE wide wide_zero(void) {
  const __m256d zero = _mm256_setzero_pd();
  return (wide){{zero, zero, zero, zero}};
}
TG_INLINE wide wide_add(wide w, vec v) {
  const __m256 low = vec_low(v), high = vec_high(v);
  w.q[0] = _mm256_add_pd(w.q[0], _mm256_cvtps_pd(_mm256_castps256_ps128(low)));
  w.q[1] = _mm256_add_pd(w.q[1], _mm256_cvtps_pd(_mm256_extractf128_ps(low, 1)));
  w.q[2] = _mm256_add_pd(w.q[2], _mm256_cvtps_pd(_mm256_castps256_ps128(high)));
  w.q[3] = _mm256_add_pd(w.q[3], _mm256_cvtps_pd(_mm256_extractf128_ps(high, 1)));
  return w;
}
TG_INLINE double wide_sum_lanes(wide w) { /* in the order of vec_sum_lanes */
  __m256d four = _mm256_add_pd(_mm256_add_pd(w.q[0], w.q[2]), _mm256_add_pd(w.q[1], w.q[3]));
  __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/* exp, to about 1 unit in the last place; the argument is held in [-87, 88]; NaN stays NaN. Cephes' reduction and polynomial. */
TG_INLINE vec vec_exp(vec x) {
  /* The bound comes first: where one operand is NaN, these instructions give the second. */
  x = vec_min(vec_set(88.0f), vec_max(vec_set(-87.0f), x));
  vec n = vec_round(vec_mul(x, vec_set(1.44269504088896341f)));
  vec r = vec_fma(n, vec_set(-0.693359375f), x);
  r = vec_fma(n, vec_set(2.12194440e-4f), r);
  vec p = vec_set(1.9875691500e-4f);
  p = vec_fma(p, r, vec_set(1.3981999507e-3f));
  p = vec_fma(p, r, vec_set(8.3334519073e-3f));
  p = vec_fma(p, r, vec_set(4.1665795894e-2f));
  p = vec_fma(p, r, vec_set(1.6666665459e-1f));
  p = vec_fma(p, r, vec_set(5.0000001201e-1f));
  p = vec_fma(p, vec_mul(r, r), vec_add(r, vec_set(1.0f)));
  return vec_mul(p, vec_exp2_whole(n));
}

#endif
