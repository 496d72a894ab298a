/* Numbers texts in the order they are first seen: an open-addressing hash table over bytes it keeps a copy of. */

#ifndef TRACE_DOCTOR_TOKENS_H
#define TRACE_DOCTOR_TOKENS_H

#include <stdlib.h>

#include "json.h"

typedef struct {
  uint64_t *slots; /* upper half: of the hash; lower half: number + 1, or 0 for an empty slot */
  size_t mask;     /* slots - 1, a power of two less one */
  uint8_t *bytes;
  size_t size, room;
  size_t *ends; /* of each text in `bytes` */
  size_t count, capacity;
  uint64_t secret; /* so that no file can be made whose texts all collide */
} Tokens;

static bool tokens_open(Tokens *t, uint64_t secret) {
  memset(t, 0, sizeof *t);
  t->secret = secret | 1;
  t->mask = 63;
  t->capacity = 32;
  t->room = 1 << 10;
  t->slots = calloc(t->mask + 1, sizeof *t->slots);
  t->ends = malloc(t->capacity * sizeof *t->ends);
  t->bytes = malloc(t->room);
  return t->slots && t->ends && t->bytes;
}

static void tokens_close(Tokens *t) {
  free(t->slots);
  free(t->ends);
  free(t->bytes);
}

static inline uint64_t mixed(uint64_t a, uint64_t b) {
  unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t eight_bytes(Place p) {
  uint64_t word;
  memcpy(&word, p, 8);
  return word;
}

/* The last 0 to 8 bytes of a text. */
static inline uint64_t last_bytes(Place text, size_t length) {
  if (length >= 8) return eight_bytes(text + length - 8);
  uint64_t word = 0;
  for (size_t i = 0; i < length; i++) word = word << 8 | text[i];
  return word;
}

static inline uint64_t hash_of(Place text, size_t length, uint64_t secret) {
  uint64_t hash = secret ^ length;
  size_t at = 0;
  for (; length - at > 8; at += 8) hash = mixed(hash ^ eight_bytes(text + at), 0x9e3779b97f4a7c15u ^ secret);
  return mixed(hash ^ last_bytes(text, length), 0xe7037ed1a0b428dbu ^ secret);
}

static inline size_t token_start(const Tokens *t, size_t number) { return number ? t->ends[number - 1] : 0; }

static bool tokens_grow_slots(Tokens *t) {
  size_t mask = 2 * t->mask + 1;
  uint64_t *slots = calloc(mask + 1, sizeof *slots);
  if (slots == NULL) return false;
  for (size_t i = 0; i < t->count; i++) {
    size_t start = token_start(t, i);
    uint64_t hash = hash_of(t->bytes + start, t->ends[i] - start, t->secret);
    size_t at = hash & mask;
    while (slots[at]) at = (at + 1) & mask;
    slots[at] = (hash & 0xffffffff00000000u) | (i + 1);
  }
  free(t->slots);
  t->slots = slots;
  t->mask = mask;
  return true;
}

static bool token_append(Tokens *t, Place text, size_t length) {
  if (t->count >= INT32_MAX - 1) return false;
  if (t->count == t->capacity) {
    size_t *ends = realloc(t->ends, 2 * t->capacity * sizeof *ends);
    if (ends == NULL) return false;
    t->ends = ends;
    t->capacity *= 2;
  }
  if (length > t->room - t->size) {
    size_t room = 2 * t->room + length;
    uint8_t *bytes = realloc(t->bytes, room);
    if (bytes == NULL) return false;
    t->bytes = bytes;
    t->room = room;
  }
  memcpy(t->bytes + t->size, text, length);
  t->size += length;
  t->ends[t->count++] = t->size;
  return true;
}

/* The number of a text; -1 where memory is short. */
static inline int32_t token_number(Tokens *t, Place text, size_t length) {
  uint64_t hash = hash_of(text, length, t->secret);
  size_t at = hash & t->mask;
  for (; t->slots[at]; at = (at + 1) & t->mask) {
    if ((t->slots[at] ^ hash) >> 32) continue;
    size_t number = (t->slots[at] & 0xffffffffu) - 1, start = token_start(t, number);
    if (t->ends[number] - start == length && memcmp(t->bytes + start, text, length) == 0) return (int32_t)number;
  }
  if (!token_append(t, text, length)) return -1;
  t->slots[at] = (hash & 0xffffffff00000000u) | t->count;
  if (t->count > t->mask / 2 && !tokens_grow_slots(t)) return -1;
  return (int32_t)t->count - 1;
}

#endif
