// llama.cpp in this process, through its shared library, so that runs of it and of Terrace can
// alternate on one machine, one file and the same number of threads. Found where it is installed,
// for instance as the prebuilt library of the npm package node-llama-cpp:
//   npm install --prefix ~/.cache/terrace-bench @node-llama-cpp/linux-x64@3.21.1
// Only what llama.h has kept for long is used: of its parameter structs the first fields, whose
// defaults are checked. Used by one thread.
#ifndef TERRACE_BENCH_LLAMA_PEER_H_
#define TERRACE_BENCH_LLAMA_PEER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/random.h"

namespace terrace::bench {

// The library's path: `wanted` if not empty, else TERRACE_LLAMA_LIBRARY, else the npm package below
// the current folder or `cache_folder`; empty if there is none.
std::string FindLlamaLibrary(const std::string& wanted, const std::string& cache_folder);

class LlamaPeer {
 public:
  // NotFound or FailedPrecondition if it cannot be loaded or is not the library it should be.
  static absl::StatusOr<std::unique_ptr<LlamaPeer>> Load(const std::string& library, int threads,
                                                         const Clock* clock);
  ~LlamaPeer();
  LlamaPeer(const LlamaPeer&) = delete;
  LlamaPeer& operator=(const LlamaPeer&) = delete;

  // Closes the model before it. InvalidArgument for a file that the library does not take.
  absl::Status Open(const std::string& path);
  // Seconds of a prompt of `tokens` tokens, to its last logits.
  absl::StatusOr<double> Prefill(int32_t tokens);
  // Median seconds of a step that appends `tokens` to each of `batch` (up to 16) sequences that
  // hold `context` tokens. REQUIRES: (steps + 1) * tokens <= 256.
  absl::StatusOr<double> Decode(int32_t context, int32_t batch, int steps, int32_t tokens = 1);

 private:
  struct Functions;
  struct Session;  // a context of the library with its sequences' tokens
  LlamaPeer(std::unique_ptr<Functions> functions, int threads, const Clock* clock);

  void Close();
  absl::StatusOr<double> PrefillHere(int32_t tokens);
  absl::StatusOr<double> DecodeHere(int32_t context, int32_t batch, int steps, int32_t tokens);
  absl::StatusOr<Session*> SessionFor(int32_t context, int32_t sequences);
  absl::Status Run(Session* session, int32_t first_sequence, int32_t sequences, int32_t tokens,
                   bool logits);

  std::unique_ptr<Functions> functions_;
  const int threads_;
  const Clock& clock_;
  Random random_;
  void* model_ = nullptr;
  int32_t vocab_ = 0;
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<Session>> sessions_;
};

}  // namespace terrace::bench

#endif  // TERRACE_BENCH_LLAMA_PEER_H_
