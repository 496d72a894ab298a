/* Numbers, to the bit as a correctly rounding parser gives them; what would need more care than is here is refused. */

#ifndef TRACE_DOCTOR_NUMBERS_H
#define TRACE_DOCTOR_NUMBERS_H

#include "json.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
/* Eight digits at once, each a byte of `word`; false where one is no digit. */
static inline bool eight_digits(uint64_t word, uint64_t *value) {
  const uint64_t high = 0xf0f0f0f0f0f0f0f0u;
  if (((word & high) | ((word + 0x0606060606060606u) & high) >> 4) != 0x3333333333333333u) return false;
  word = (word & 0x0f0f0f0f0f0f0f0fu) * 2561 >> 8;
  word = (word & 0x00ff00ff00ff00ffu) * 6553601 >> 16;
  *value = (word & 0x0000ffff0000ffffu) * 42949672960001u >> 32;
  return true;
}
#endif

/* Past digits, which are appended to those of `sum`; exact for up to 19 of them. */
static inline Place read_digits(Place p, Place end, uint64_t *sum) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  uint64_t word, value;
  for (; end - p >= 8; p += 8) {
    memcpy(&word, p, 8);
    if (!eight_digits(word, &value)) break;
    *sum = *sum * 100000000u + value;
  }
#endif
  for (; p < end && is_digit(*p); p++) *sum = *sum * 10 + (uint64_t)(*p - '0');
  return p;
}

enum { MOST_DIGITS = 19 };

/* An integer up to 64 bits, signed or unsigned, as the bits of an int64. */
static inline Place read_integer(Place p, Place end, int64_t *value) {
  bool negative = *p == '-';
  p += negative;
  if (p == end) return end;
  Place start = p;
  uint64_t sum = 0;
  p = read_digits(p, end, &sum);
  if (p == end) return end;
  if (p == start || (*start == '0' && p - start > 1)) return NULL;
  if (*p == '.' || (*p | 0x20) == 'e') return NULL;
  if (p - start > MOST_DIGITS) {
    if (p - start > MOST_DIGITS + 1) return NULL;
    sum = 0;
    for (Place digit = start; digit < p; digit++)
      if (__builtin_mul_overflow(sum, 10u, &sum) || __builtin_add_overflow(sum, (uint64_t)(*digit - '0'), &sum)) return NULL;
  }
  if (negative && sum > (uint64_t)INT64_MAX) return NULL;
  sum = negative ? 0 - sum : sum;
  memcpy(value, &sum, sizeof sum);
  return p;
}

static const double POWER[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                               1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
enum { LARGEST_POWER = 22 };
static const uint64_t EXACT = (uint64_t)1 << 53;

/* digits / 10**places, rounded once. EXACT < digits < 10**19, 0 < places <= 19. */
static double quotient(uint64_t digits, int places) {
  uint64_t divisor = 1;
  for (int i = 0; i < places; i++) divisor *= 10;
  int shift = __builtin_clzll(digits) + 64;
  unsigned __int128 dividend = (unsigned __int128)digits << shift;
  unsigned __int128 wide = dividend / divisor; /* at least 64 bits: the dividend has 128 */
  bool inexact = wide * divisor != dividend;
  uint64_t upper = (uint64_t)(wide >> 64);
  int drop = upper ? 64 - __builtin_clzll(upper) : 0;
  uint64_t top = (uint64_t)(wide >> drop); /* 64 significant bits: more than 53, so that one sticky bit decides ties */
  inexact |= ((unsigned __int128)top << drop) != wide;
  const int spare = 64 - 53;
  uint64_t kept = top >> spare, rest = top & (((uint64_t)1 << spare) - 1), half = (uint64_t)1 << (spare - 1);
  kept += rest > half || (rest == half && (inexact || (kept & 1)));
  double value = (double)kept; /* exact: at most 2**53 */
  for (int twos = shift - drop - spare; twos != 0; twos += twos > 0 ? -1 : 1) value *= twos > 0 ? 0.5 : 2.0;
  return value;
}

/* A number as a float64. */
static inline Place read_float(Place p, Place end, double *value) {
  bool negative = *p == '-';
  p += negative;
  if (p == end) return end;
  Place start = p;
  uint64_t digits = 0;
  int power = 0;
  p = read_digits(p, end, &digits);
  if (p == end) return end;
  if (p == start) return NULL;
  if (*start == '0' && p - start > 1) return NULL;
  ptrdiff_t count = p - start;
  if (*p == '.') {
    Place point = ++p;
    p = read_digits(p, end, &digits);
    if (p == end) return end;
    if (p == point) return NULL;
    count += p - point;
    if (count > MOST_DIGITS) return NULL;
    power = -(int)(p - point);
  }
  if (count > MOST_DIGITS) return NULL;
  if ((*p | 0x20) == 'e') {
    if (++p == end) return end;
    bool down = *p == '-';
    if (down || *p == '+') p++;
    int exponent = 0;
    Place first = p;
    for (; p < end && is_digit(*p) && p - first < 3; p++) exponent = exponent * 10 + (*p - '0');
    if (p == end) return end;
    if (p == first || p - first > 2) return NULL;
    power += down ? -exponent : exponent;
  }
  double found;
  if (digits <= EXACT && power >= -LARGEST_POWER && power <= LARGEST_POWER) {
    found = power < 0 ? (double)digits / POWER[-power] : (double)digits * POWER[power]; /* both exact: rounded once */
  } else if (power == 0) {
    found = (double)digits;
  } else if (digits > EXACT && power < 0 && power >= -MOST_DIGITS) {
    found = quotient(digits, -power);
  } else {
    return NULL;
  }
  *value = negative ? -found : found;
  return p;
}

#endif
