/* libFuzzer harness of the decoder in C. Under AddressSanitizer, the text lies in a block of exactly its size, so that a
   read of one byte too many ends the run. What the decoder says of a text is checked for sense here; whether its values
   are those of the text, `tests/loaders/test_accelerator.py` checks on the cases that the fuzzer found. */

#include <stdio.h>

#include "nest.c"
#undef EXPORT
#include "scan.c"

#define CHECK(holds) \
  do { \
    if (!(holds)) { \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #holds); \
      abort(); \
    } \
  } while (0)

enum { MOST = 64 };

static int64_t scan_with(Scanner *s, Place text, int64_t length, int64_t room, Found *found) {
  *found = (Found){
      .ts = calloc((size_t)room, 8),
      .dur = calloc((size_t)room, 8),
      .correlation = calloc((size_t)room, 8),
      .external = calloc((size_t)room, 8),
      .offset = calloc((size_t)room, 8),
      .stream = calloc((size_t)room, 4),
      .name = calloc((size_t)room, 4),
      .cat = calloc((size_t)room, 4),
      .track = calloc((size_t)room, 4),
      .device = calloc((size_t)room, 2),
      .memory = calloc((size_t)room, sizeof(MemoryRow)),
      .labels = calloc((size_t)room, sizeof(Span)),
      .row_room = room,
      .memory_room = room,
      .label_room = room,
  };
  return trace_doctor_scan(s, text, length, 0, found);
}

static void release(Found *found) {
  void *lent[] = {found->ts,     found->dur,  found->correlation, found->external, found->offset, found->stream,
                  found->name,   found->cat,  found->track,       found->device,   found->memory, found->labels};
  for (size_t i = 0; i < sizeof lent / sizeof *lent; i++) free(lent[i]);
}

static void check_token(const Scanner *s, int table, int32_t number) {
  int64_t length = -1;
  Place bytes = trace_doctor_token(s, table, number, &length);
  CHECK(bytes != NULL && length > 0);
  for (int64_t i = 0; i < length; i++) CHECK(table > CATS || bytes[i] >= ' '); /* and all of it can be read */
}

static void check_found(const Scanner *s, Place text, int64_t length, int64_t end, const Found *found) {
  CHECK(end >= 0 && end < length);
  CHECK(end == 0 || text[end - 1] == '}');
  int64_t before = -1;
  for (int64_t i = 0; i < found->row_count && end > 0; i++) {
    int64_t offset = found->offset[i];
    CHECK(offset > before && offset < end && text[offset] == '{');
    before = offset;
    CHECK(found->ts[i] > -LATEST && found->ts[i] < LATEST && found->stream[i] >= -1 && found->device[i] >= -1);
    check_token(s, NAMES, found->name[i]);
    check_token(s, CATS, found->cat[i]);
    check_token(s, TRACKS, found->track[i]);
  }
  for (int64_t i = 0; i < found->label_count && end > 0; i++) {
    Span span = found->labels[i];
    CHECK(span.start < span.end && span.end <= end && text[span.start] == '{' && text[span.end - 1] == '}');
  }
}

static void try_nest(const uint8_t *data, size_t size) {
  int64_t count = (int64_t)(size / 3);
  int64_t *ts = malloc((size_t)count * 8), *stop = malloc((size_t)count * 8), now = 0;
  int64_t *dur = malloc((size_t)count * 8), *rows = malloc((size_t)count * 8);
  int32_t *parent = malloc((size_t)count * 4), *depth = malloc((size_t)count * 4);
  for (int64_t i = 0; i < count; i++) {
    ts[i] = now += data[3 * i] & 7;
    stop[i] = data[3 * i + 1] == 255 ? INT64_MAX : now + data[3 * i + 1] % 32 + 256 * (data[3 * i + 2] & 1);
    dur[i] = stop[i] - ts[i];
    rows[i] = i;
  }
  CHECK(trace_doctor_nest(ts, dur, rows, count, parent, depth));
  for (int64_t i = 0; i < count; i++) {
    CHECK(parent[i] >= -1 && parent[i] < i);
    CHECK(depth[i] == (parent[i] < 0 ? 0 : depth[parent[i]] + 1));
    CHECK(parent[i] < 0 || stop[parent[i]] > ts[i]);
  }
  free(ts), free(stop), free(dur), free(rows), free(parent), free(depth);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *text = malloc(size);
  if (size) memcpy(text, data, size);
  Scanner *s = trace_doctor_open(0x5eed);
  Found found, again;
  int64_t end = scan_with(s, text, (int64_t)size, MOST, &found);
  CHECK(end >= FULL);
  if (end >= 0) check_found(s, text, (int64_t)size, end, &found);
  /* What was found does not hang on the room there was, nor on what the scanner has seen before. */
  int64_t second = scan_with(s, text, (int64_t)size, 2 * MOST, &again);
  CHECK(end == FULL || second == end);
  if (end > 0) {
    CHECK(again.row_count == found.row_count && again.memory_count == found.memory_count);
    CHECK(memcmp(again.ts, found.ts, (size_t)found.row_count * 8) == 0);
    CHECK(memcmp(again.dur, found.dur, (size_t)found.row_count * 8) == 0);
    CHECK(memcmp(again.offset, found.offset, (size_t)found.row_count * 8) == 0);
    CHECK(memcmp(again.name, found.name, (size_t)found.row_count * 4) == 0);
    CHECK(memcmp(again.memory, found.memory, (size_t)found.memory_count * sizeof(MemoryRow)) == 0);
  }
  release(&found);
  release(&again);
  trace_doctor_close(s);
  try_nest(data, size < 3000 ? size : 3000);
  free(text);
  return 0;
}
