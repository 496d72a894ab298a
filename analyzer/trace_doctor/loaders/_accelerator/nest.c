/* Which event of a thread encloses which: `trace_doctor.evidence.nesting.nest`, one event after another. */

#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

/* Events by start, longer first. Gives for each the nearest event before it that is open at its start and holds its
   middle (a place in the arrays, -1 for none), and how many enclose it. False where memory is short. */
EXPORT int trace_doctor_nest(const int64_t *ts, const int64_t *stop, int64_t count, int32_t *parent, int32_t *depth) {
  if (count <= 0) return 1;
  int32_t *open = malloc((size_t)count * sizeof *open);
  if (open == NULL) return 0;
  int64_t top = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t middle = ts[i] + ((stop[i] - ts[i]) >> 1);
    while (top > 0 && stop[open[top - 1]] <= ts[i]) top--;
    int64_t outer = top - 1;
    while (outer >= 0 && stop[open[outer]] < middle) outer--;
    parent[i] = outer >= 0 ? open[outer] : -1;
    depth[i] = outer >= 0 ? depth[open[outer]] + 1 : 0;
    if (i + 1 < count && stop[i] > ts[i + 1]) open[top++] = (int32_t)i; /* else over before the next begins */
  }
  free(open);
  return 1;
}
