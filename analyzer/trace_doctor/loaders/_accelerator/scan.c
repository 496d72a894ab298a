/* Trace events -> columns of numbers, for the windows of text that hold nothing unusual.

   A window begins at the `{` of an event. It is read to the last border between two events, or to the one before the
   first event that is not plainly what profilers write: Python's decoder goes on there. So this file holds no repair
   and no rule for damage, and what it accepts, every JSON reader accepts with the same values. */

#include <math.h>

#include "gaps.h"
#include "numbers.h"
#include "tokens.h"

#define EXPORT __attribute__((visibility("default")))

/* What a key of an event or of its arguments is for. The integers come first; from ADDR on they are of `[memory]`. */
enum {
  CORRELATION, EXTERNAL, EXTERNAL_OLD, DEVICE, STREAM,
  ADDR, BYTES, ALLOCATED, RESERVED, DEVICE_TYPE, DEVICE_ID,
  INTEGERS,
  PH, TS, DUR, CAT, NAME, PID, TID, ARGS,
  OTHER,
  OVER, /* no key: the object ends */
};
static const int64_t ABSENT[INTEGERS] = {-1, -1, -1, -1, -1, -1, 0, -1, -1, 0, -1};

typedef struct {
  double ts;
  int64_t integers[INTEGERS - ADDR];
} MemoryRow;

typedef struct {
  int64_t start, end;
} Span;

enum { NAMES, CATS, TRACKS, IDS, TABLES };

/* What the caller lends, and gets back filled. Rows are appended to the columns behind the `row_count` there are. */
typedef struct {
  double *ts, *dur;
  int64_t *correlation, *external, *offset;
  int32_t *stream, *name, *cat, *track;
  int16_t *device;
  MemoryRow *memory;
  Span *labels;
  int64_t row_room, memory_room, label_room;
  int64_t row_count, memory_count, label_count;
  int64_t out_of_memory;
  int64_t whole_ts; /* every start is a whole number */
  int64_t texts[TRACKS + 1]; /* how many texts the tables hold */
} Found;

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

enum { GAPS = 16, KINDS = 16 };

typedef struct {
  Tokens tables[TABLES];
  Gap border, members[KINDS][GAPS], args[KINDS][GAPS];
  Text cat, pid, tid; /* of the row before, and their numbers */
  int32_t cat_number, track_number;
} Scanner;

static const Text EMPTY = {(Place) "\"\"", 2};

static inline bool same(Text text, const char *word, size_t length) {
  return text.length == length && memcmp(text.at, word, length) == 0;
}
#define IS(text, word) same(text, word, sizeof word - 1)

static inline bool equal(Text a, Text b) { return a.length == b.length && memcmp(a.at, b.at, a.length) == 0; }

static int member_of(Text key) {
  switch (key.length) {
    case 2: return IS(key, "ph") ? PH : IS(key, "ts") ? TS : OTHER;
    case 3: return IS(key, "pid") ? PID : IS(key, "tid") ? TID : IS(key, "cat") ? CAT : IS(key, "dur") ? DUR : OTHER;
    case 4: return IS(key, "name") ? NAME : IS(key, "args") ? ARGS : OTHER;
    default: return OTHER;
  }
}

static int argument_of(Text key) {
  switch (key.length) {
    case 4: return IS(key, "Addr") ? ADDR : OTHER;
    case 5: return IS(key, "Bytes") ? BYTES : OTHER;
    case 6: return IS(key, "stream") ? STREAM : IS(key, "device") ? DEVICE : OTHER;
    case 9: return IS(key, "Device Id") ? DEVICE_ID : OTHER;
    case 11:
      return IS(key, "External id")   ? EXTERNAL
             : IS(key, "correlation") ? CORRELATION
             : IS(key, "external id") ? EXTERNAL_OLD
             : IS(key, "Device Type") ? DEVICE_TYPE
                                      : OTHER;
    case 14: return IS(key, "Total Reserved") ? RESERVED : OTHER;
    case 15: return IS(key, "Total Allocated") ? ALLOCATED : OTHER;
    default: return OTHER;
  }
}

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

static Place next_key_anew(Place p, Place end, Gap *gap, bool first, int (*meaning)(Text), int *field) {
  Place start = p;
  p = past_space(p, end);
  if (p == end) return end;
  if (*p == '}') {
    *field = OVER;
    p++;
  } else {
    Text key;
    if (!first) {
      if (*p != ',') return NULL;
      p = past_space(p + 1, end);
      if (p == end) return end;
    }
    p = past_key(p, end, &key);
    if (p == NULL || p == end) return p;
    *field = meaning(key);
  }
  gap_keep(gap, start, p, *field);
  return p;
}

/* From behind a value (or, `first`, behind the opening bracket) to the next value, or past the closing bracket. */
static inline Place next_key(Place p, Place end, Gap *gap, bool first, int (*meaning)(Text), int *field) {
  if (!gap_matches(gap, p, end) || (p[gap->length] <= ' ' && gap->meaning != OVER)) /* more space than before */
    return next_key_anew(p, end, gap, first, meaning, field);
  *field = gap->meaning;
  return p + gap->length;
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

static inline Place read_args(Place p, Place end, Gap gaps[GAPS], Event *event) {
  if (*p != '{' || event->args) return NULL;
  event->args = true;
  p++;
  for (int place = 0;; place++) {
    int field;
    p = next_key(p, end, &gaps[place < GAPS ? place : GAPS - 1], place == 0, argument_of, &field);
    if (p == NULL || p == end || field == OVER) return p;
    p = field < INTEGERS ? read_integer(p, end, &event->integers[field]) : past_value(p, end);
    if (p == NULL || p == end) return p;
  }
}

/* Keys follow each other alike in events of one kind. A letter of a text tells that mostly: 0 before it is read. */
static inline int kind_of(Text text, size_t letter) { return letter + 1 < text.length ? text.at[letter] % KINDS : 0; }

/* Past an event, from its `{`. */
static inline Place read_event(Place p, Place end, Scanner *s, Event *event) {
  event->ts = (double)NAN;
  event->dur = -1.0;
  memcpy(event->integers, ABSENT, sizeof ABSENT);
  event->ph = event->name = event->cat = event->pid = event->tid = EMPTY;
  event->escaped = event->args = false;
  p++;
  for (int place = 0;; place++) {
    int field;
    Gap *gaps = s->members[kind_of(event->ph, 1)];
    p = next_key(p, end, &gaps[place < GAPS ? place : GAPS - 1], place == 0, member_of, &field);
    if (p == NULL || p == end || field == OVER) return p;
    switch (field) {
      case PH: p = read_text(p, end, &event->ph, &event->escaped); break;
      case NAME: p = read_text(p, end, &event->name, &event->escaped); break;
      case CAT: p = read_text(p, end, &event->cat, &event->escaped); break;
      case PID: p = read_id(p, end, &event->pid, &event->escaped); break;
      case TID: p = read_id(p, end, &event->tid, &event->escaped); break;
      case TS: p = read_float(p, end, &event->ts); break;
      case DUR: p = read_float(p, end, &event->dur); break;
      case ARGS: p = read_args(p, end, s->args[kind_of(event->cat, 2)], event); break;
      default: p = past_value(p, end);
    }
    if (p == NULL || p == end) return p;
  }
}

/* A key that Python's search for borders takes for the first of an event. */
static bool begins_event(Text key) {
  switch (key.length) {
    case 1: return IS(key, "s");
    case 2: return IS(key, "ph") || IS(key, "ts") || IS(key, "id") || IS(key, "bp") || IS(key, "sf");
    case 3: return IS(key, "cat") || IS(key, "pid") || IS(key, "tid") || IS(key, "dur") || IS(key, "tts");
    case 4: return IS(key, "name") || IS(key, "args");
    default: return false;
  }
}

/* Past the border behind an event, to the `{` of the next. */
static inline Place past_border(Place p, Place end, Gap *border) {
  if (gap_matches(border, p, end)) return p + border->meaning;
  Text key;
  Place start = p;
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
  if (!begins_event(key)) return NULL;
  gap_keep(border, start, p, (int32_t)(next - start));
  return next;
}

static inline int32_t number_of(Scanner *s, int table, Text text) {
  return token_number(&s->tables[table], text.at, text.length);
}

enum { OK = 0, UNUSUAL = -1, FULL = -2 };

static const double LATEST = 4e15; /* LATEST_US in kineto_decode.py */

static inline int keep_row(Scanner *s, const Event *e, int64_t offset, Found *found) {
  int64_t row = found->row_count;
  if (row == found->row_room) return FULL;
  if (!(e->ts > -LATEST && e->ts < LATEST)) return UNUSUAL;
  if (!equal(e->cat, s->cat)) {
    s->cat_number = number_of(s, CATS, e->cat);
    s->cat = e->cat;
  }
  if (!equal(e->tid, s->tid) || !equal(e->pid, s->pid)) {
    int32_t ids[2] = {number_of(s, IDS, e->pid), number_of(s, IDS, e->tid)};
    if (ids[0] < 0 || ids[1] < 0) return UNUSUAL;
    s->track_number = token_number(&s->tables[TRACKS], (Place)ids, sizeof ids);
    s->pid = e->pid;
    s->tid = e->tid;
  }
  int32_t name = number_of(s, NAMES, e->name);
  if (name < 0 || s->cat_number < 0 || s->track_number < 0) return UNUSUAL; /* short of memory */
  const int64_t *given = e->integers;
  found->ts[row] = e->ts;
  found->dur[row] = e->dur;
  found->correlation[row] = given[CORRELATION];
  found->external[row] = given[EXTERNAL] > given[EXTERNAL_OLD] ? given[EXTERNAL] : given[EXTERNAL_OLD];
  found->offset[row] = offset;
  found->stream[row] = given[STREAM] >= -1 && given[STREAM] <= INT32_MAX ? (int32_t)given[STREAM] : -1;
  found->device[row] = (int16_t)(given[DEVICE] < -1 ? -1 : given[DEVICE] > INT16_MAX ? INT16_MAX : given[DEVICE]);
  found->name[row] = name;
  found->cat[row] = s->cat_number;
  found->track[row] = s->track_number;
  found->whole_ts &= (double)(int64_t)e->ts == e->ts;
  found->row_count++;
  return OK;
}

static int keep_other(const Event *e, int64_t start, int64_t end, Found *found) {
  if (e->escaped) return UNUSUAL; /* one of the words looked for may be written with escapes */
  if (IS(e->ph, "\"\"")) return UNUSUAL; /* no event, but perhaps what damage has left of one */
  int counter = IS(e->ph, "\"C\"") && !IS(e->name, "\"Cycles (Current Kernel)\""); /* DERIVED in decode.py: one for each kernel */
  if (counter || IS(e->ph, "\"M\"")) {
    if (!counter && !IS(e->name, "\"thread_name\"") && !IS(e->name, "\"process_name\"") && !IS(e->name, "\"process_labels\"")) return OK;
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

static int64_t scan(Scanner *s, Place text, Place end, int64_t at, Found *found) {
  Place p = text;
  int64_t behind = 0, events = 0;
  if (p == end || *p != '{') return UNUSUAL;
  for (;;) {
    Event event;
    Place start = p;
    Place stop = read_event(p, end, s, &event);
    if (stop == NULL || stop == end) break;
    p = past_border(stop, end, &s->border);
    if (p == NULL || p == end) break;
    int timed = IS(event.ph, "\"X\"") && !IS(event.name, "\"[memory]\""); /* the Python export of 2.13 and 2.14 writes it as X */
    int kept = timed ? keep_row(s, &event, at + (start - text), found)
                                     : keep_other(&event, start - text, stop - text, found);
    if (kept == FULL) return FULL;
    if (kept == UNUSUAL) break;
    behind = stop - text;
    events++;
  }
  return events < 2 ? 0 : behind;
}

/* Reads the whole events of text[0:length], the first of which begins at 0, byte `at` of the file. Gives the position
   behind the last event that a border follows, up to the first unusual one (0 where there are not two such events); -1
   where it begins with no event; -2 where there was no room for all that it holds. The counts in `found` hold where it gives more than 0. */
EXPORT int64_t trace_doctor_scan(Scanner *s, Place text, int64_t length, int64_t at, Found *found) {
  found->memory_count = found->label_count = found->out_of_memory = 0;
  found->whole_ts = 1;
  s->cat = s->pid = s->tid = (Text){(Place) "", 0}; /* equal to no token: those have quotes or digits */
  int64_t behind = scan(s, text, text + length, at, found);
  for (int table = 0; table <= TRACKS; table++) found->texts[table] = (int64_t)s->tables[table].count;
  return behind;
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
