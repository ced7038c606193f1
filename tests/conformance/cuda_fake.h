// A stand-in for NVIDIA's driver: its entry points over host memory. It runs everything at once,
// checks that calls come in an allowed order with live handles on a thread that said which device
// it means, makes a chosen call fail, and remembers launches.
#ifndef TERRACE_TESTS_CONFORMANCE_CUDA_FAKE_H_
#define TERRACE_TESTS_CONFORMANCE_CUDA_FAKE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "device/cuda/cuda_api.h"

namespace terrace::device {

struct CudaFake {
  struct Launch {
    std::vector<unsigned> shape;       // groups, then items
    std::vector<uint64_t> parameters;  // as many as the test says
  };

  uint64_t memory_bytes = uint64_t{1} << 30;
  size_t parameters = 0;  // of the kernels that are launched
  int fail_at = 0;        // the number of the call that fails; 0: none
  cuda::Result fail_with = 719;

  absl::Mutex mutex;
  int calls = 0;
  bool failed = false;
  std::string failed_call;
  std::vector<std::string> violations;
  std::map<cuda::Address, std::vector<std::byte>> allocations;
  std::set<void*> streams, events, modules;
  int contexts = 0;
  std::vector<Launch> launches;

  // Things that were made and not given back.
  size_t alive() const {
    return allocations.size() + streams.size() + events.size() + modules.size() +
           static_cast<size_t>(contexts);
  }
};

// The entry points of `fake`, which must outlive their use. One at a time in a program: C functions
// have no other place for their state.
cuda::Driver FakeDriver(CudaFake* fake);

}  // namespace terrace::device

#endif  // TERRACE_TESTS_CONFORMANCE_CUDA_FAKE_H_
