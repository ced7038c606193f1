// terrace_make_model SHAPE FORMAT SEED FILE: writes a model with random weights (see
// bench/generate_model.h), for tests that want one larger than the golden models.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/status.h"
#include "generate_model.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: terrace_make_model SHAPE FORMAT SEED FILE\n");
    return 2;
  }
  auto shape = terrace::bench::FindShape(argv[1]);
  absl::Status status = shape.status();
  if (shape.ok()) {
    terrace::bench::GenerateOptions options;
    options.shape = *shape;
    options.format = argv[2];
    options.seed = std::strtoull(argv[3], nullptr, 10);
    status = terrace::bench::GenerateModel(options, argv[4]);
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "terrace_make_model: %s\n", std::string(terrace::Message(status)).c_str());
  return 1;
}
