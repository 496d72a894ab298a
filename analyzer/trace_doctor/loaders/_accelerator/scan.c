/* Trace events -> rows of numbers, for the windows of text that hold nothing unusual.

   A window begins at the `{` of an event. It is read to the last border between two events, and given up as a whole at
   the first byte that is not plainly what profilers write: Python's decoder then reads it. So this file holds no repair
   and no rule for damage, and what it accepts, every JSON reader accepts with the same values. */

#include "numbers.h"
#include "tokens.h"

#define EXPORT __attribute__((visibility("default")))

/* The arguments that become columns, in the order of `INTEGERS` in the binding. */
enum { CORRELATION, EXTERNAL, EXTERNAL_OLD, DEVICE, STREAM, ADDR, BYTES, ALLOCATED, RESERVED, DEVICE_TYPE, DEVICE_ID, INTEGERS };
static const int64_t ABSENT[INTEGERS] = {-1, -1, -1, -1, -1, -1, 0, -1, -1, 0, -1};

typedef struct {
  double ts, dur;
  int64_t integers[STREAM + 1];
  int64_t offset;
  int32_t name, cat, track, unused;
} Row;

typedef struct {
  double ts;
  int64_t integers[INTEGERS - ADDR];
} MemoryRow;

typedef struct {
  int64_t start, end;
} Span;

/* What the caller lends and gets back: room for `..._room` entries, of which `...s` are filled. */
typedef struct {
  Row *rows;
  MemoryRow *memory;
  Span *labels;
  int64_t row_room, memory_room, label_room;
  int64_t row_count, memory_count, label_count, out_of_memory;
} Found;

enum { NAMES, CATS, IDS, TRACKS, TABLES };

typedef struct {
  Tokens tables[TABLES];
} Scanner;

typedef struct {
  Place at;
  size_t length;
} Text;

typedef struct {
  double ts, dur;
  int64_t integers[INTEGERS];
  Text ph, name, cat, pid, tid;
  bool escaped; /* one of the texts holds an escape */
  bool args;
} Event;

static const Text EMPTY = {(Place) "\"\"", 2};

static inline bool same(Text text, const char *word, size_t length) {
  return text.length == length && memcmp(text.at, word, length) == 0;
}
#define IS(text, word) same(text, word, sizeof word - 1)

/* Past a key and its colon, to the value. */
static inline Place past_key(Place p, Place end, Text *key) {
  bool escaped = false;
  if (*p != '"') return NULL;
  key->at = p + 1;
  p = to_quote(p + 1, end, &escaped);
  if (p == NULL || p == end) return p;
  if (escaped) return NULL;
  key->length = (size_t)(p - key->at);
  p = past_space(p + 1, end);
  if (p == end) return end;
  if (*p != ':') return NULL;
  return past_space(p + 1, end);
}

/* To the next key of an object, or past its end (*over). */
static inline Place past_comma(Place p, Place end, bool *over) {
  if (p == NULL || p == end) return p;
  p = past_space(p, end);
  if (p == end) return end;
  *over = *p == '}';
  if (*p == '}') return p + 1;
  if (*p != ',') return NULL;
  return past_space(p + 1, end);
}

static inline Place read_text(Place p, Place end, Text *text, bool *escaped) {
  if (*p != '"') return NULL;
  text->at = p;
  p = to_quote(p + 1, end, escaped);
  if (p == NULL || p == end) return p;
  text->length = (size_t)(p + 1 - text->at);
  return p + 1;
}

/* A process or thread: text, or a whole number. */
static inline Place read_id(Place p, Place end, Text *text, bool *escaped) {
  bool whole;
  if (*p == '"') return read_text(p, end, text, escaped);
  text->at = p;
  p = past_number(p, end, &whole);
  if (p == NULL || p == end) return p;
  text->length = (size_t)(p - text->at);
  return whole ? p : NULL;
}

/* Which column an argument is for; INTEGERS for none. */
static inline int integer_of(Text key) {
  switch (key.length) {
    case 4: return IS(key, "Addr") ? ADDR : INTEGERS;
    case 5: return IS(key, "Bytes") ? BYTES : INTEGERS;
    case 6: return IS(key, "stream") ? STREAM : IS(key, "device") ? DEVICE : INTEGERS;
    case 9: return IS(key, "Device Id") ? DEVICE_ID : INTEGERS;
    case 11:
      return IS(key, "External id")   ? EXTERNAL
             : IS(key, "correlation") ? CORRELATION
             : IS(key, "external id") ? EXTERNAL_OLD
             : IS(key, "Device Type") ? DEVICE_TYPE
                                      : INTEGERS;
    case 14: return IS(key, "Total Reserved") ? RESERVED : INTEGERS;
    case 15: return IS(key, "Total Allocated") ? ALLOCATED : INTEGERS;
    default: return INTEGERS;
  }
}

static Place read_args(Place p, Place end, Event *event) {
  if (*p != '{' || event->args) return NULL;
  event->args = true;
  p = past_space(p + 1, end);
  if (p == end) return end;
  if (*p == '}') return p + 1;
  for (bool over = false; !over;) {
    Text key;
    p = past_key(p, end, &key);
    if (p == NULL || p == end) return p;
    int field = integer_of(key);
    p = past_comma(field < INTEGERS ? read_integer(p, end, &event->integers[field]) : past_value(p, end), end, &over);
    if (p == NULL || p == end) return p;
  }
  return p;
}

static inline Place read_member(Place p, Place end, Text key, Event *event) {
  switch (key.length) {
    case 2:
      if (IS(key, "ph")) return read_text(p, end, &event->ph, &event->escaped);
      if (IS(key, "ts")) return read_float(p, end, &event->ts);
      break;
    case 3:
      if (IS(key, "cat")) return read_text(p, end, &event->cat, &event->escaped);
      if (IS(key, "dur")) return read_float(p, end, &event->dur);
      if (IS(key, "pid")) return read_id(p, end, &event->pid, &event->escaped);
      if (IS(key, "tid")) return read_id(p, end, &event->tid, &event->escaped);
      break;
    case 4:
      if (IS(key, "name")) return read_text(p, end, &event->name, &event->escaped);
      if (IS(key, "args")) return read_args(p, end, event);
      break;
  }
  return past_value(p, end);
}

/* Past an event, from its `{`. */
static inline Place read_event(Place p, Place end, Event *event) {
  event->ts = (double)__builtin_nanf("");
  event->dur = -1.0;
  memcpy(event->integers, ABSENT, sizeof ABSENT);
  event->ph = event->name = event->cat = event->pid = event->tid = EMPTY;
  event->escaped = event->args = false;
  p = past_space(p + 1, end);
  if (p == end) return end;
  for (bool over = false; !over;) {
    Text key;
    p = past_key(p, end, &key);
    if (p == NULL || p == end) return p;
    p = past_comma(read_member(p, end, key, event), end, &over);
    if (p == NULL || p == end) return p;
  }
  return p;
}

/* Past the border behind an event, to the `{` of the next. The key that an event begins with must be one that Python's
   search for borders knows. */
static inline Place past_border(Place p, Place end) {
  Text key;
  p = past_space(p, end);
  if (p == end) return end;
  if (*p != ',') return NULL;
  p = past_space(p + 1, end);
  if (p == end) return end;
  if (*p != '{') return NULL;
  Place next = p;
  p = past_space(p + 1, end);
  if (p == end) return end;
  p = past_key(p, end, &key);
  if (p == NULL || p == end) return p;
  switch (key.length) {
    case 1: return IS(key, "s") ? next : NULL;
    case 2: return IS(key, "ph") || IS(key, "ts") || IS(key, "id") || IS(key, "bp") || IS(key, "sf") ? next : NULL;
    case 3: return IS(key, "cat") || IS(key, "pid") || IS(key, "tid") || IS(key, "dur") || IS(key, "tts") ? next : NULL;
    case 4: return IS(key, "name") || IS(key, "args") ? next : NULL;
    default: return NULL;
  }
}

static inline int32_t number_of(Scanner *s, int table, Text text) {
  return token_number(&s->tables[table], text.at, text.length);
}

enum { OK = 0, UNUSUAL = -1, FULL = -2 };

static inline int keep_row(Scanner *s, const Event *e, int64_t offset, Found *found) {
  if (found->row_count == found->row_room) return FULL;
  int32_t track[2] = {number_of(s, IDS, e->pid), number_of(s, IDS, e->tid)};
  Row *row = &found->rows[found->row_count++];
  row->ts = e->ts;
  row->dur = e->dur;
  memcpy(row->integers, e->integers, sizeof row->integers);
  row->offset = offset;
  row->name = number_of(s, NAMES, e->name);
  row->cat = number_of(s, CATS, e->cat);
  row->track = token_number(&s->tables[TRACKS], (Place)track, sizeof track);
  row->unused = 0;
  bool kept = track[0] >= 0 && track[1] >= 0 && row->name >= 0 && row->cat >= 0 && row->track >= 0;
  return kept ? OK : UNUSUAL;
}

static int keep_other(const Event *e, int64_t start, int64_t end, Found *found) {
  if (e->escaped) return UNUSUAL; /* one of the words looked for may be written with escapes */
  if (IS(e->ph, "\"M\"")) {
    if (!IS(e->name, "\"thread_name\"") && !IS(e->name, "\"process_name\"") && !IS(e->name, "\"process_labels\"")) return OK;
    if (found->label_count == found->label_room) return FULL;
    found->labels[found->label_count++] = (Span){start, end};
  } else if (IS(e->name, "\"[memory]\"")) {
    if (found->memory_count == found->memory_room) return FULL;
    MemoryRow *row = &found->memory[found->memory_count++];
    row->ts = e->ts;
    memcpy(row->integers, e->integers + ADDR, sizeof row->integers);
  } else if (IS(e->name, "\"[OutOfMemory]\"")) {
    found->out_of_memory++;
  }
  return OK;
}

/* Reads the whole events of text[0:length], the first of which begins at 0. Gives the position behind the last event
   that a border follows (0 where there are not two such events); -1 where the text holds anything unusual; -2 where there was no room
   for all it found. */
EXPORT int64_t trace_doctor_scan(Scanner *s, Place text, int64_t length, Found *found) {
  Place p = text, end = text + length;
  int64_t behind = 0, events = 0;
  found->row_count = found->memory_count = found->label_count = found->out_of_memory = 0;
  if (length < 2 || *p != '{') return UNUSUAL;
  for (;;) {
    Event event;
    Place start = p;
    Place stop = read_event(p, end, &event);
    if (stop == NULL) return UNUSUAL;
    if (stop == end) break;
    p = past_border(stop, end);
    if (p == NULL) return UNUSUAL;
    if (p == end) break;
    int kept = IS(event.ph, "\"X\"") ? keep_row(s, &event, start - text, found)
                                     : keep_other(&event, start - text, stop - text, found);
    if (kept != OK) return kept;
    behind = stop - text;
    events++;
  }
  return events < 2 ? 0 : behind;
}

EXPORT void trace_doctor_close(Scanner *s) {
  if (s == NULL) return;
  for (int i = 0; i < TABLES; i++) tokens_close(&s->tables[i]);
  free(s);
}

/* NULL where memory is short. */
EXPORT Scanner *trace_doctor_open(uint64_t secret) {
  Scanner *s = calloc(1, sizeof *s);
  if (s == NULL) return NULL;
  bool opened = true;
  for (int i = 0; i < TABLES; i++) opened &= tokens_open(&s->tables[i], secret);
  if (opened) return s;
  trace_doctor_close(s);
  return NULL;
}

/* The bytes of text `number` of a table, as they stand in the file; a track is the numbers of its two ids. */
EXPORT Place trace_doctor_token(const Scanner *s, int table, int32_t number, int64_t *length) {
  if (table < 0 || table >= TABLES || number < 0 || (size_t)number >= s->tables[table].count) return NULL;
  const Tokens *t = &s->tables[table];
  size_t start = token_start(t, (size_t)number);
  *length = (int64_t)(t->ends[number] - start);
  return t->bytes + start;
}

/* The hash of the sources that this was built from. */
EXPORT const char *trace_doctor_built_from(void) { return TRACE_DOCTOR_SOURCES; }
