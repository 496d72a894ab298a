/* What stands between two values of an event (`,\n    "pid": `) is mostly the same as at that place of the event before.
   Such text is read once, and from then on compared. */

#ifndef TRACE_DOCTOR_GAPS_H
#define TRACE_DOCTOR_GAPS_H

#include "json.h"

enum { LONGEST_GAP = 32 };

typedef struct {
  uint8_t bytes[LONGEST_GAP];
  uint32_t mask;  /* one bit for each byte */
  int32_t length; /* 0: nothing is expected here */
  int32_t meaning;
} Gap;

static inline void gap_keep(Gap *gap, Place start, Place stop, int32_t meaning) {
  ptrdiff_t length = stop - start;
  gap->length = 0;
  if (length <= 0 || length > LONGEST_GAP) return;
  memcpy(gap->bytes, start, (size_t)length);
  gap->mask = length == 32 ? ~(uint32_t)0 : ((uint32_t)1 << length) - 1;
  gap->length = (int32_t)length;
  gap->meaning = meaning;
}

/* The text at `p` is what is expected, and something follows it. */
static inline bool gap_matches(const Gap *gap, Place p, Place end) {
#ifdef __SSE2__
  if (end - p <= LONGEST_GAP) return false;
  const __m128i *here = (const __m128i *)p, *expected = (const __m128i *)gap->bytes;
  uint32_t low = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(here), _mm_loadu_si128(expected)));
  uint32_t high = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128(here + 1), _mm_loadu_si128(expected + 1)));
  return gap->length && !(~(low | high << 16) & gap->mask);
#else
  return gap->length && end - p > gap->length && memcmp(p, gap->bytes, (size_t)gap->length) == 0;
#endif
}

#endif
