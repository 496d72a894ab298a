/* Which event of a thread encloses which: `trace_doctor.evidence.nesting.nest`, one event after another. */

#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct {
  int64_t stop;
  int32_t row, depth;
} Open;

/* `rows` are the events of one thread by start, longer first: places in the other arrays. Gives for each the nearest
   event before it that is open at its start and holds its middle (-1 for none), and how many enclose it. False where
   memory is short. */
EXPORT int trace_doctor_nest(const int64_t *ts, const int64_t *dur, const int64_t *rows, int64_t count, int32_t *parent,
                             int32_t *depth) {
  if (count <= 0) return 1;
  Open *open = malloc((size_t)count * sizeof *open);
  if (open == NULL) return 0;
  int64_t top = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t row = rows[i], start = ts[row], stop = start + dur[row], middle = start + ((stop - start) >> 1);
    while (top > 0 && open[top - 1].stop <= start) top--;
    int64_t outer = top - 1;
    while (outer >= 0 && open[outer].stop < middle) outer--;
    parent[row] = outer >= 0 ? open[outer].row : -1;
    depth[row] = outer >= 0 ? open[outer].depth + 1 : 0;
    if (i + 1 < count && stop > ts[rows[i + 1]]) open[top++] = (Open){stop, (int32_t)row, depth[row]}; /* else over before */
  }
  free(open);
  return 1;
}

/* Which of the rows lie in a chosen event. `up` has the event around each, an earlier one, or -1. */
EXPORT void trace_doctor_inside(const int32_t *up, const uint8_t *chosen, const int64_t *rows, int64_t count, uint8_t *found) {
  for (int64_t i = 0; i < count; i++) {
    int32_t at = up[rows[i]];
    while (at >= 0 && !chosen[at]) at = up[at] < at ? up[at] : -1;
    found[i] = at >= 0;
  }
}
