/* A natural logarithm of our own: the C library's may give other bits elsewhere. */
#ifndef TIDEGATE_LOG_H
#define TIDEGATE_LOG_H

#include <stdint.h>
#include <string.h>

/* log of a normal, positive number, to about 1e-14: x = 2**exponent * m with m about 1, and log(m) = 2 artanh(z). */
static inline double log_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  int64_t exponent = (int64_t)(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
  double m;
  memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent++;
  }
  const double z = (m - 1.0) / (m + 1.0), square = z * z; /* at most 0.0295 */
  double series = 1.0 / 17.0;
  for (int odd = 15; odd >= 1; odd -= 2) series = series * square + 1.0 / odd;
  return 2.0 * z * series + (double)exponent * 0.6931471805599453;
}

#endif
