// Runs a fuzzer's entry point on its stored inputs and on damaged copies of them, so that builds
// without libFuzzer still test what the fuzzer once found.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/random.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace terrace {
namespace {

void RunOnce(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

TEST(FuzzReplay, StoredInputsAndDamagedCopiesAreHandled) {
  namespace fs = std::filesystem;
  constexpr uint64_t kSeed = 20260115;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  RunOnce("");
  if (!fs::is_directory(TERRACE_CORPUS)) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(TERRACE_CORPUS)) {
    SCOPED_TRACE(entry.path().string());
    std::ifstream in(entry.path(), std::ios::binary);
    std::string input{std::istreambuf_iterator<char>(in), {}};
    RunOnce(input);
    for (int i = 0; i < 20 && !input.empty(); ++i) {
      std::string damaged = input;
      damaged[random.Below(damaged.size())] = static_cast<char>(random.Next());
      RunOnce(damaged);
      RunOnce(input.substr(0, random.Below(input.size())));
    }
  }
}

}  // namespace
}  // namespace terrace
