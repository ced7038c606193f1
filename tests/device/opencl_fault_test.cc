// The OpenCL device over entry points of which each call in turn fails: nothing crashes, waits for
// ever or leaks, and the error arrives where it belongs.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "device/opencl/opencl_device.h"

namespace terrace::device {
namespace {

using cl::Api;

// What stands between the device and the real functions. C functions have no other place for their
// state; one test of this program runs at a time.
struct Injector {
  Api real;
  std::atomic<int> calls{0};
  int fail_at = 0;  // the number of the call that fails; 0: none
  cl::Int code = cl::kOutOfResources;
  std::atomic<int> failed{0};
  std::atomic<bool> failed_naming{false};  // what failed was to ask for a description
  std::atomic<int> alive{0};               // objects made and not released
};
Injector* injector = nullptr;

template <auto kMember>
struct Thunk;

// Functions that return a code. Releasing always works: there is no sensible answer to a failure.
template <typename... A, cl::Int (*Api::*kMember)(A...)>
struct Thunk<kMember> {
  static bool IsNaming() {
    constexpr auto kOfDevice = &Api::GetDeviceInfo;
    constexpr auto kOfPlatform = &Api::GetPlatformInfo;
    using Member = std::remove_cv_t<decltype(kMember)>;
    if constexpr (std::is_same_v<Member, std::remove_cv_t<decltype(kOfDevice)>>) {
      if (kMember == kOfDevice) return true;
    }
    if constexpr (std::is_same_v<Member, std::remove_cv_t<decltype(kOfPlatform)>>) {
      if (kMember == kOfPlatform) return true;
    }
    return false;
  }

  template <bool kReleases>
  static cl::Int Call(A... arguments) {
    if constexpr (kReleases) {
      --injector->alive;
    } else if (++injector->calls == injector->fail_at) {
      ++injector->failed;
      injector->failed_naming = IsNaming();
      return injector->code;
    }
    return (injector->real.*kMember)(arguments...);
  }
};

// Functions that return an object; the code goes to the last parameter.
template <typename Object, typename... A, Object* (*Api::*kMember)(A...)>
struct Thunk<kMember> {
  static Object* Call(A... arguments) {
    cl::Int* code = nullptr;
    ((code = Last(arguments)), ...);
    if (++injector->calls == injector->fail_at) {
      ++injector->failed;
      *code = injector->code;
      return nullptr;
    }
    Object* made = (injector->real.*kMember)(arguments...);
    if (made != nullptr) ++injector->alive;
    return made;
  }
  static cl::Int* Last(cl::Int* code) { return code; }
  template <typename T>
  static cl::Int* Last(T) {
    return nullptr;
  }
};

cl::Int CountedMarker(cl::Queue queue, cl::Uint count, const cl::EventHandle* wait,
                      cl::EventHandle* event) {
  const cl::Int code =
      Thunk<&Api::EnqueueMarkerWithWaitList>::Call<false>(queue, count, wait, event);
  if (code == cl::kSuccess) ++injector->alive;
  return code;
}

Api Injected(Injector* state) {
  injector = state;
  state->real = cl::LoadApi().value();
  Api api = state->real;
#define CODE(name) api.name = &Thunk<&Api::name>::Call<false>
#define RELEASE(name) api.name = &Thunk<&Api::name>::Call<true>
#define OBJECT(name) api.name = &Thunk<&Api::name>::Call
  CODE(GetPlatformIDs);
  CODE(GetPlatformInfo);
  CODE(GetDeviceIDs);
  CODE(GetDeviceInfo);
  OBJECT(CreateContext);
  RELEASE(ReleaseContext);
  OBJECT(CreateCommandQueue);
  RELEASE(ReleaseCommandQueue);
  OBJECT(CreateBuffer);
  RELEASE(ReleaseMemObject);
  CODE(EnqueueWriteBuffer);
  CODE(EnqueueReadBuffer);
  CODE(EnqueueCopyBuffer);
  OBJECT(CreateProgramWithSource);
  OBJECT(CreateProgramWithBinary);
  CODE(BuildProgram);
  CODE(GetProgramInfo);
  CODE(GetProgramBuildInfo);
  RELEASE(ReleaseProgram);
  OBJECT(CreateKernel);
  CODE(SetKernelArg);
  CODE(GetKernelInfo);
  RELEASE(ReleaseKernel);
  CODE(EnqueueNDRangeKernel);
  api.EnqueueMarkerWithWaitList = &CountedMarker;
  CODE(EnqueueBarrierWithWaitList);
  CODE(WaitForEvents);
  CODE(GetEventInfo);
  RELEASE(ReleaseEvent);
  CODE(Flush);
  CODE(Finish);
#undef CODE
#undef RELEASE
#undef OBJECT
  return api;
}

bool HaveOpenCl() {
  const auto found = ListOpenClDevices();
  return found.ok() && !found->empty();
}

constexpr uint64_t kBytes = 64 << 10;

// Uses every part of the contract once. True if all of it went well; then the result was right.
bool Scenario(const Api& api, const std::string& cache) {
  // Destroyed last: where waiting fails, copies may be under way until the device is gone.
  std::vector<uint32_t> data(kBytes / 4), back(kBytes / 4);
  OpenClOptions options;
  options.memory_bytes = 1 << 20;
  options.buffer_bytes = 512 << 10;
  options.cache_folder = cache;
  auto device = CreateOpenClDevice(options, api);
  if (!device.ok()) return false;
  KernelSource source{"add", nullptr, R"(
KERNEL(add)(MEM(x), int n) {
  const int i = GROUP(0) * ITEMS(0) + ITEM(0);
  if (i < n) PTR(uint, x)[i] += 7;
})"};
  auto kernel = (*device)->CreateKernel(source);
  auto first = (*device)->CreateStream();
  auto second = (*device)->CreateStream();
  auto event = (*device)->CreateEvent();
  bool good = kernel.ok() && first.ok() && second.ok() && event.ok();
  if (!good) return false;
  std::byte* a = (*device)->Allocate(kBytes).value();
  std::byte* b = (*device)->Allocate(kBytes).value();
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint32_t>(i);
  const auto keep = [&](const absl::Status& status) { good = status.ok() && good; };
  keep((*first)->CopyAsync(CopyDirection::kHostToDevice, a,
                           reinterpret_cast<std::byte*>(data.data()), kBytes));
  const KernelArgument arguments[] = {KernelArgument::Memory(a),
                                      KernelArgument::Value(static_cast<int>(data.size()))};
  keep((*first)->Launch(**kernel, {{kBytes / 4 / 64, 1, 1}, {64, 1, 1}}, arguments));
  bool called = false;
  absl::Status seen;
  keep((*first)->HostCallback([&](absl::Status status) {
    called = true;
    seen = status;
  }));
  keep((*first)->Record(event->get()));
  keep((*second)->Wait(**event));
  keep((*second)->CopyAsync(CopyDirection::kDeviceToDevice, b, a, kBytes));
  keep((*second)->CopyAsync(CopyDirection::kDeviceToHost, reinterpret_cast<std::byte*>(back.data()),
                            b, kBytes));
  keep((*second)->Synchronize());
  keep((*event)->Synchronize());
  keep((*event)->Query().status());
  keep((*first)->Synchronize());
  EXPECT_TRUE(called);
  if (good) {
    EXPECT_TRUE(seen.ok());
    for (size_t i = 0; i < data.size(); ++i) {
      EXPECT_EQ(back[i], data[i] + 7);
      if (back[i] != data[i] + 7) break;
    }
  }
  (*device)->Free(a, kBytes);
  (*device)->Free(b, kBytes);
  EXPECT_EQ((*device)->GetMemoryInfo().allocated_bytes, 0u);
  return good;
}

class OpenClFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HaveOpenCl()) GTEST_SKIP() << "no OpenCL device on this machine";
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-XXXXXX").string();
    cache_ = mkdtemp(pattern.data());
  }
  void TearDown() override {
    if (!cache_.empty()) std::filesystem::remove_all(cache_);
  }
  std::string cache_;
};

TEST_F(OpenClFaultTest, EachCallThatFailsIsToldAndNothingLeaks) {
  Injector state;
  const Api api = Injected(&state);
  ASSERT_TRUE(Scenario(api, ""));
  EXPECT_EQ(state.alive, 0);
  const int calls = state.calls;
  ASSERT_GT(calls, 40);
  for (const cl::Int code : {cl::kOutOfResources, cl::kDeviceNotAvailable}) {
    state.code = code;
    for (int n = 1; n <= calls; ++n) {
      SCOPED_TRACE(testing::Message() << "call " << n << " fails with " << code);
      state.calls = 0;
      state.failed = 0;
      state.failed_naming = false;
      state.fail_at = n;
      const bool good = Scenario(api, "");
      // Names of platform and device may be missing, and nobody is there to be told when the last
      // two calls, the waits of ending streams, fail.
      if (state.failed > 0 && !state.failed_naming && n <= calls - 2) {
        EXPECT_FALSE(good);
      }
      EXPECT_EQ(state.alive, 0);
    }
  }
}

TEST_F(OpenClFaultTest, CompiledKernelsComeFromDiskTheSecondTime) {
  Injector state;
  const Api api = Injected(&state);
  ASSERT_TRUE(Scenario(api, cache_));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(cache_)) {
    files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 1u);
  // With the compiler gone, only the file helps.
  Api without = api;
  without.CreateProgramWithSource = [](cl::Context, cl::Uint, const char**, const size_t*,
                                       cl::Int* code) -> cl::Program {
    *code = -3;
    return nullptr;
  };
  EXPECT_TRUE(Scenario(without, cache_));
  EXPECT_FALSE(Scenario(without, ""));
  EXPECT_EQ(state.alive, 0);
  // A damaged file is compiled anew, and replaced.
  std::filesystem::resize_file(files[0], 100);
  EXPECT_TRUE(Scenario(api, cache_));
  EXPECT_GT(std::filesystem::file_size(files[0]), 100u);
  EXPECT_TRUE(Scenario(without, cache_));
}

TEST_F(OpenClFaultTest, AskingForWhatIsNotThereSaysSo) {
  OpenClOptions options;
  options.device = "no such chip";
  const auto missing = CreateOpenClDevice(options);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("no such chip"), absl::string_view::npos);
  options.device = "0";
  options.memory_bytes = uint64_t{1} << 50;
  EXPECT_EQ(CreateOpenClDevice(options).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cl::LoadApi("libterrace-no-such-library.so").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace terrace::device
