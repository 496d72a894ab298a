/* Readers of JSON tokens. Each takes the place where its token begins and the end of the text, and gives

     the place behind the token,
     `end`  where the text is over before the token certainly is (always so for a token that reaches the end),
     NULL   where the token is malformed, or sound but unusual: Python's decoder then reads the text.

   No byte at or behind `end` is ever read. */

#ifndef TRACE_DOCTOR_JSON_H
#define TRACE_DOCTOR_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef const uint8_t *Place;

/* Past white space. */
static inline Place past_space(Place p, Place end) {
  while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
  return p;
}

/* To the first byte of a string that is not plain: a quote, a backslash, a control byte, or no ASCII. */
static inline Place past_plain(Place p, Place end) {
#ifdef __SSE2__
  const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x20);
  for (; end - p >= 16; p += 16) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    __m128i special = _mm_or_si128(_mm_cmplt_epi8(bytes, control), /* signed: not ASCII is below 0 */
                                   _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, slash)));
    int mask = _mm_movemask_epi8(special);
    if (mask) return p + __builtin_ctz((unsigned)mask);
  }
#endif
  while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\') p++;
  return p;
}

static inline bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

static int hex_digit(uint8_t c) {
  if (is_digit(c)) return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Past the escape whose backslash is at `p`. Surrogates are left to Python. */
static Place past_escape(Place p, Place end) {
  if (end - p < 2) return end;
  switch (p[1]) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't': return p + 2;
    case 'u': break;
    default: return NULL;
  }
  if (end - p < 6) return end;
  int code = 0;
  for (int i = 2; i < 6; i++) {
    int digit = hex_digit(p[i]);
    if (digit < 0) return NULL;
    code = code * 16 + digit;
  }
  return code >= 0xd800 && code < 0xe000 ? NULL : p + 6;
}

/* Past one character of UTF-8 that is no ASCII. */
static Place past_unicode(Place p, Place end) {
  uint8_t first = *p;
  int more = first >= 0xc2 && first < 0xe0 ? 1 : first >= 0xe0 && first < 0xf0 ? 2 : first >= 0xf0 && first < 0xf5 ? 3 : 0;
  if (more == 0) return NULL;
  if (end - p <= more) return end;
  uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80; /* no overlong forms */
  uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf; /* no surrogates, nothing above U+10FFFF */
  if (p[1] < low || p[1] > high) return NULL;
  for (int i = 2; i <= more; i++)
    if ((p[i] & 0xc0) != 0x80) return NULL;
  return p + more + 1;
}

/* To the closing quote of the string whose content begins at `p`. */
static inline Place to_quote(Place p, Place end, bool *escaped) {
  for (;;) {
    p = past_plain(p, end);
    if (p == end || *p == '"') return p;
    if (*p == '\\') {
      *escaped = true;
      p = past_escape(p, end);
    } else {
      p = past_unicode(p, end); /* refuses control bytes as well */
    }
    if (p == NULL || p == end) return p;
  }
}

/* Past a string, from its opening quote. */
static inline Place past_string(Place p, Place end) {
  bool escaped;
  p = to_quote(p + 1, end, &escaped);
  return p == NULL || p == end ? p : p + 1;
}

/* Past a number. `whole`: it has neither fraction nor exponent. */
static inline Place past_number(Place p, Place end, bool *whole) {
  *whole = true;
  Place start = p;
  if (*p == '-') p++;
  if (p == end) return end;
  if (!is_digit(*p)) return NULL;
  if (*p == '0') {
    p++;
    if (p < end && is_digit(*p)) return NULL;
  }
  while (p < end && is_digit(*p)) p++;
  if (p < end && *p == '.') {
    *whole = false;
    p++;
    if (p == end) return end;
    if (!is_digit(*p)) return NULL;
    while (p < end && is_digit(*p)) p++;
  }
  if (p < end && (*p | 0x20) == 'e') {
    *whole = false;
    p++;
    if (p < end && (*p == '+' || *p == '-')) p++;
    if (p == end) return end;
    Place digits = p;
    while (p < end && is_digit(*p)) p++;
    if (p == digits || p - digits > 2) return NULL;
  }
  return p - start > 64 ? NULL : p;
}

static Place past_word(Place p, Place end, const char *word) {
  for (; *word; p++, word++) {
    if (p == end) return end;
    if (*p != (uint8_t)*word) return NULL;
  }
  return p;
}

enum { DEEPEST = 60 };

/* Past any value. An object behind a comma of a list is unusual: such a comma looks like the border between two events
   to Python's search for borders. */
static Place past_value(Place p, Place end) {
  uint64_t objects = 0; /* one bit for each open bracket, the innermost last */
  int depth = 0;
  bool whole;
  if (p == end) return end;
  for (;;) {
    switch (*p) {
      case '"': p = past_string(p, end); break;
      case 't': p = past_word(p, end, "true"); break;
      case 'f': p = past_word(p, end, "false"); break;
      case 'n': p = past_word(p, end, "null"); break;
      case '{': case '[': {
        bool object = *p == '{';
        p = past_space(p + 1, end);
        if (p == end) return end;
        if (*p == (object ? '}' : ']')) {
          p++;
          break;
        }
        if (++depth > DEEPEST) return NULL;
        objects = objects << 1 | object;
        if (object) goto key;
        continue;
      }
      default: p = past_number(p, end, &whole);
    }
    for (;;) {
      if (p == NULL || p == end || depth == 0) return p;
      p = past_space(p, end);
      if (p == end) return end;
      if (*p == ',') break;
      if (*p != (objects & 1 ? '}' : ']')) return NULL;
      p++;
      objects >>= 1;
      depth--;
    }
    p = past_space(p + 1, end);
    if (p == end) return end;
    if (!(objects & 1)) {
      if (*p == '{') return NULL;
      continue;
    }
  key:
    if (*p != '"') return NULL;
    p = past_string(p, end);
    if (p == NULL || p == end) return p;
    p = past_space(p, end);
    if (p == end) return end;
    if (*p != ':') return NULL;
    p = past_space(p + 1, end);
    if (p == end) return end;
  }
}

#endif
