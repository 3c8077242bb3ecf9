/* The best of many numbers in order, largest first and equal ones by rising index, without sorting all of them. */
#ifndef TIDEGATE_RANK_H
#define TIDEGATE_RANK_H

#include <math.h>

#include "simd.h"

/* A number and where it stood. `key` rises as the number falls, so that entries sort by rising key. */
typedef struct {
  uint32_t key, index;
} tg_entry;

TG_INLINE uint32_t falling_key(float value) {
  uint32_t bits;
  value += 0.0f; /* minus nought equals nought, and must not sort behind it */
  memcpy(&bits, &value, sizeof bits);
  return bits >> 31 ? bits : bits ^ 0x7fffffffu;
}

TG_INLINE float value_of_key(uint32_t key) {
  const uint32_t bits = key >> 31 ? key : key ^ 0x7fffffffu;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Sorts by rising key, byte by byte; entries of the same key stay in their order. Gives whichever array holds them then. */
static inline tg_entry *sort_entries(tg_entry *entries, tg_entry *spare, int64_t num) {
  uint32_t counts[4][256];
  memset(counts, 0, sizeof counts);
  for (int64_t i = 0; i < num; i++)
    for (int byte = 0; byte < 4; byte++) counts[byte][entries[i].key >> 8 * byte & 255]++;
  for (int byte = 0; byte < 4; byte++) {
    if (num == 0 || counts[byte][entries[0].key >> 8 * byte & 255] == num) continue; /* the same in all of them */
    uint32_t place = 0;
    for (int digit = 0; digit < 256; digit++) {
      const uint32_t count = counts[byte][digit];
      counts[byte][digit] = place;
      place += count;
    }
    for (int64_t i = 0; i < num; i++) spare[counts[byte][entries[i].key >> 8 * byte & 255]++] = entries[i];
    tg_entry *sorted = spare;
    spare = entries;
    entries = sorted;
  }
  return entries;
}

/* Groups whose maxima are looked at, for each number wanted: with more of them fewer numbers beside those wanted reach the
 * bound, and more maxima are sorted. */
#define GROUPS_PER_WANTED 4

/* A bound that at least `num_wanted` of the numbers reach, and few others do: as many disjoint groups reach it. */
static inline float bound_of_best(const float *x, int64_t n, int64_t num_wanted, tg_entry *entries, tg_entry *spare) {
  const int64_t num_vectors = n / 16;
  const int64_t length = num_vectors * 16 / (GROUPS_PER_WANTED * num_wanted); /* vectors of a run: a group is one lane */
  if (length < 2) return -INFINITY;
  int64_t num_groups = 0;
  for (int64_t start = 0; start < num_vectors; start += length) {
    const int64_t end = start + length < num_vectors ? start + length : num_vectors;
    vec most = vec_load(x + start * 16);
    for (int64_t v = start + 1; v < end; v++) most = vec_max(most, vec_load(x + v * 16));
    float lanes[16];
    vec_store(lanes, most);
    for (int lane = 0; lane < 16; lane++) entries[num_groups++] = (tg_entry){falling_key(lanes[lane]), 0};
  }
  return value_of_key(sort_entries(entries, spare, num_groups)[num_wanted - 1].key);
}

/* Entries of the quotients x[i] / divisor that are at least `bound`, by rising index; gives their number. */
static inline int64_t collect_entries(const float *x, int64_t n, float divisor, float bound, tg_entry *entries) {
  int64_t num = 0, i = 0;
  for (; i + 16 <= n; i += 16) {
    const vec quotients = vec_div(vec_load(x + i), vec_set(divisor));
    uint32_t reached = vec_at_least(quotients, vec_set(bound));
    if (!reached) continue;
    float lanes[16];
    vec_store(lanes, quotients);
    for (; reached; reached &= reached - 1) {
      const int lane = __builtin_ctz(reached);
      entries[num++] = (tg_entry){falling_key(lanes[lane]), (uint32_t)(i + lane)};
    }
  }
  for (; i < n; i++)
    if (x[i] / divisor >= bound) entries[num++] = (tg_entry){falling_key(x[i] / divisor), (uint32_t)i};
  return num;
}

/* The `num_wanted` largest quotients x[i] / divisor in order, at most n of them. Both arrays hold n entries; the result is
 * one of them, and what lies behind it there is left over. */
static inline tg_entry *rank_best(const float *x, int64_t n, int64_t num_wanted, float divisor, tg_entry *entries,
                                  tg_entry *spare) {
  /* Dividing keeps the order, but may make numbers equal: hence the bound is of quotients too. */
  const float bound = bound_of_best(x, n, num_wanted, entries, spare) / divisor;
  return sort_entries(entries, spare, collect_entries(x, n, divisor, bound, entries));
}

#endif
