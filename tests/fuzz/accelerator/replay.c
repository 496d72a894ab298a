/* Runs the harness over files, and over what is left of each when it is cut anywhere: `replay FILE...`. */

#include "fuzz.c"

int main(int count, char **paths) {
  static uint8_t text[1 << 16];
  for (int i = 1; i < count; i++) {
    FILE *file = fopen(paths[i], "rb");
    CHECK(file != NULL);
    size_t size = fread(text, 1, sizeof text, file);
    fclose(file);
    for (size_t length = 0; length <= size; length += length + 64 < size ? 7 : 1) LLVMFuzzerTestOneInput(text, length);
  }
  printf("%d texts\n", count - 1);
  return 0;
}
