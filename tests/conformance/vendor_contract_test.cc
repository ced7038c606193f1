// Devices over vendors' libraries, against stand-ins that are shared libraries with the vendors'
// entry points: each call that fails is told and leaves nothing behind, calls come in an allowed
// order with right arguments, and what is not there is said. The conformance suite runs on the same
// devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <regex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/ascend/acl_api.h"
#include "device/ascend/ascend_device.h"
#include "device/cambricon/cambricon_device.h"
#include "device/cambricon/cnrt_api.h"
#include "device/cuda/cuda_device.h"
#include "device/hip/hip_device.h"
#include "device/musa/musa_device.h"
#include "vendor/vendor_codes.h"
#include "vendor_library.h"

namespace terrace::device {
namespace {

constexpr uint64_t kBytes = 64 << 10;
constexpr uint64_t kMemory = 4 << 20;

struct Vendor {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<Device>>(int ordinal, uint64_t memory_bytes,
                                                        const std::string& library)>
      create;
  int out_of_memory = 0;   // the vendor's code, which is to become ResourceExhausted
  int broken = 0;          // one that is to become Internal
  std::vector<int> codes;  // all that its library may answer with
  bool kernels = false;    // it has a run-time compiler
};

absl::StatusOr<std::unique_ptr<Device>> Own(absl::StatusOr<std::unique_ptr<DriverDevice>> device) {
  if (!device.ok()) return device.status();
  return std::unique_ptr<Device>(*std::move(device));
}

absl::StatusOr<std::unique_ptr<Device>> OfShape(const absl::StatusOr<cuda::Driver>& driver,
                                                const char* kind, int ordinal,
                                                uint64_t memory_bytes) {
  if (!driver.ok()) return driver.status();
  // HIP's stand-in has a compiler, which gives back the text that it was given.
  cuda::CompilerMaker maker = hip::Hiprtc();
  maker.libraries = {FakeLibrary("hip")};
  ASSIGN_OR_RETURN(auto compiler, cuda::Compiler::Open(maker));
  CudaOptions options;
  options.kind = kind;
  options.ordinal = ordinal;
  options.memory_bytes = memory_bytes;
  return CreateCudaDevice(options, *driver, std::move(compiler));
}

std::vector<Vendor> Vendors() {
  return {{"ascend",
           [](int ordinal, uint64_t bytes, const std::string& library) {
             AscendOptions options;
             options.ordinal = ordinal;
             options.memory_bytes = bytes;
             options.library = library;
             return Own(CreateAscendDevice(options));
           },
           207001, 507015, CodesOf(kAclCodes)},
          {"cambricon",
           [](int ordinal, uint64_t bytes, const std::string& library) {
             CambriconOptions options;
             options.ordinal = ordinal;
             options.memory_bytes = bytes;
             options.library = library;
             return Own(CreateCambriconDevice(options));
           },
           100100, 632015, CodesOf(kCnrtCodes)},
          {"cuda",
           [](int ordinal, uint64_t bytes, const std::string& library) {
             return OfShape(cuda::LoadDriver(library), "cuda", ordinal, bytes);
           },
           2, 719, CodesOf(kCudaCodes), true},
          {"hip",
           [](int ordinal, uint64_t bytes, const std::string& library) {
             return OfShape(hip::LoadDriver(library), "hip", ordinal, bytes);
           },
           2, 719, CodesOf(kHipCodes), true},
          {"musa",
           [](int ordinal, uint64_t bytes, const std::string& library) {
             return OfShape(musa::LoadDriver(library), "musa", ordinal, bytes);
           },
           2, 719, CodesOf(kCudaCodes), true}};
}

class VendorContractTest : public testing::TestWithParam<Vendor> {
 protected:
  void SetUp() override {
    fake_ = FakeOf(GetParam().name);
    fake_->violations.clear();
    fake_->Arm(0, 0);
  }
  absl::StatusOr<std::unique_ptr<Device>> Create(uint64_t bytes = kMemory, int ordinal = 0) {
    return GetParam().create(ordinal, bytes, FakeLibrary(GetParam().name));
  }

  // Uses every part of the contract. OK if all went well; then the result was right.
  absl::Status Scenario() {
    std::vector<uint32_t> data(kBytes / 4, 7), back(kBytes / 4);
    auto device = Create();
    if (!device.ok()) return device.status();
    auto first = (*device)->CreateStream();
    if (!first.ok()) return first.status();
    auto second = (*device)->CreateStream();
    if (!second.ok()) return second.status();
    auto event = (*device)->CreateEvent().value();
    auto a = (*device)->Allocate(kBytes);
    auto b = (*device)->Allocate(kBytes);
    absl::Status bad = a.ok() ? b.status() : a.status();
    bool called = false;
    if (bad.ok()) {
      const auto keep = [&](const absl::Status& status) {
        if (bad.ok()) bad = status;
      };
      keep((*first)->CopyAsync(CopyDirection::kHostToDevice, *a,
                               reinterpret_cast<std::byte*>(data.data()), kBytes));
      keep((*first)->HostCallback([&](absl::Status) { called = true; }));
      keep((*first)->Record(event.get()));
      keep((*second)->Wait(*event));
      keep((*second)->CopyAsync(CopyDirection::kDeviceToDevice, *b, *a, kBytes));
      keep((*second)->CopyAsync(CopyDirection::kDeviceToHost,
                                reinterpret_cast<std::byte*>(back.data()), *b, kBytes));
      keep((*second)->Synchronize());
      keep(event->Synchronize());
      keep(event->Query().status());
      keep((*first)->Synchronize());
      EXPECT_TRUE(called);
      if (GetParam().kernels) keep(Launch(**device, **first));
      // At a page, as some drivers want it.
      const std::unique_ptr<void, void (*)(void*)> page(std::aligned_alloc(4096, kBytes),
                                                        std::free);
      const std::span<std::byte> host(static_cast<std::byte*>(page.get()), kBytes);
      if ((*device)->Pin(host)) (*device)->Unpin(host);
    }
    if (bad.ok()) {
      EXPECT_EQ(back, data);
    }
    if (a.ok()) (*device)->Free(*a, kBytes);
    if (b.ok()) (*device)->Free(*b, kBytes);
    return bad;
  }

  // Four launches twice, of which the second time becomes a graph.
  static absl::Status Launch(Device& device, Stream& stream) {
    ASSIGN_OR_RETURN(std::unique_ptr<Kernel> kernel,
                     device.CreateKernel({"add", nullptr, "KERNEL(add)(int n) {}", "PLUS=1"}));
    const KernelArgument arguments[] = {KernelArgument::Value(int32_t{5})};
    for (int run = 0; run < 2; ++run) {
      for (int i = 0; i < 4; ++i) {
        RETURN_IF_ERROR(stream.Launch(*kernel, {{3, 2, 1}, {64, 2, 1}}, arguments));
      }
      RETURN_IF_ERROR(stream.Synchronize());
    }
    return absl::OkStatus();
  }
  // Whether `code` is no failure of the call: not yet, or not for the first time. Pinning is a
  // hint, and so is a chip's address.
  // So is a graph: without it kernels are launched one by one.
  bool Harmless(const std::string& call, int code) const {
    if (call.find("Graph") != std::string::npos || call.find("Capture") != std::string::npos) {
      return true;
    }
    if (WithinCapture()) return true;
    if (call.ends_with("EventQuery") && code == 600) return true;
    if (call == "cnrtQueryNotifier" && (code == 632014 || code == 1)) return true;
    if (call == "aclInit" && code == 100002) return true;
    return call.find("HostRegister") != std::string::npos || call.ends_with("GetPCIBusId");
  }

  // Whether the call that failed was to make a graph: what it would have done is done elsewhere.
  bool WithinCapture() const {
    if (graph_calls_.second == 0) return false;
    return fake_->fail_at >= graph_calls_.first && fake_->fail_at <= graph_calls_.second;
  }
  // Notes which calls of a run without failures make graphs.
  void NoteGraphCalls() {
    graph_calls_ = {0, 0};
    for (size_t i = 0; i < fake_->order.size(); ++i) {
      const std::string& call = fake_->order[i];
      // The stream on which they are captured comes first.
      if (call.find("BeginCapture") != std::string::npos) {
        graph_calls_.first = static_cast<int>(i);
      }
      if (call.find("GraphLaunch") != std::string::npos) {
        graph_calls_.second = static_cast<int>(i) + 1;
      }
    }
  }

  // Makes each call of the scenario answer with each code.
  void TryEveryCode() {
    fake_->Arm(0, 0);
    ASSERT_TRUE(Scenario().ok());
    NoteGraphCalls();
    const int calls = fake_->calls;
    const std::vector<std::string> order = fake_->order;
    ASSERT_EQ(order.size(), static_cast<size_t>(calls));
    ASSERT_GT(GetParam().codes.size(), 20u);
    int told = 0;
    for (const int code : GetParam().codes) {
      for (int n = 1; n <= calls; ++n) {
        fake_->Arm(n, code);
        const absl::Status status = Scenario();
        SCOPED_TRACE(testing::Message() << "code " << code << " from call " << n << ", "
                                        << fake_->failed_call << ": " << status);
        ASSERT_TRUE(fake_->failed);
        ASSERT_EQ(fake_->failed_call, order[static_cast<size_t>(n) - 1]);
        // The waits of ending streams, which are the last, have nobody to tell.
        if (n <= calls - 2 && !Harmless(fake_->failed_call, code)) {
          ASSERT_FALSE(status.ok());
          ++told;
        }
        ASSERT_EQ(fake_->Alive(), 0u);
        ASSERT_THAT(fake_->violations, testing::IsEmpty());
      }
    }
    std::printf("%s: %zu codes at %d calls of %zu functions, %d failures told\n",
                GetParam().name.c_str(), GetParam().codes.size(), calls, fake_->called.size(),
                told);
  }

  VendorFake* fake_ = nullptr;
  std::pair<int, int> graph_calls_;  // the first and the last, from 1
};

// Every code that the library has, at every one of its calls.
TEST_P(VendorContractTest, EveryCodeAtEveryCallIsToldAndNothingLeaks) {
  fake_->called.clear();
  TryEveryCode();
  // The same where the driver does not map pages.
  if (GetParam().kernels) {
    fake_->has_pages = false;
    TryEveryCode();
    fake_->has_pages = true;
  }
  // No function of the library was left out; operators are other tests'
  // (tests/engine/ascend_backend_test.cc, cnnl_backend_test.cc).
  for (const std::string& function : FunctionsOf(GetParam().name)) {
    if (std::regex_search(function, std::regex("^(acl(nn|Create|Destroy|Set)|cnnl)"))) continue;
    EXPECT_TRUE(fake_->called.contains(function)) << function;
  }
}

TEST_P(VendorContractTest, EachCallThatFailsIsToldAsWhatItIs) {
  ASSERT_TRUE(Scenario().ok());
  EXPECT_EQ(fake_->Alive(), 0u);
  EXPECT_THAT(fake_->violations, testing::IsEmpty());
  NoteGraphCalls();
  const int calls = fake_->calls;
  ASSERT_GT(calls, 14);
  for (const auto& [code, status] :
       {std::pair{GetParam().out_of_memory, absl::StatusCode::kResourceExhausted},
        std::pair{GetParam().broken, absl::StatusCode::kInternal}}) {
    for (int n = 1; n <= calls; ++n) {
      fake_->Arm(n, code);
      const absl::Status told = Scenario();
      SCOPED_TRACE(testing::Message() << "call " << n << ", " << fake_->failed_call);
      // Nobody is there to be told when the last two calls, the waits of ending streams, fail.
      if (fake_->failed && n <= calls - 2 && !Harmless(fake_->failed_call, code)) {
        // A compiler has codes of its own.
        const bool compiler = fake_->failed_call.starts_with("hiprtc");
        EXPECT_EQ(told.code(), compiler ? absl::StatusCode::kInternal : status) << told;
        EXPECT_NE(std::string(told.message()).find("made to fail"), std::string::npos) << told;
      }
      EXPECT_EQ(fake_->Alive(), 0u);
      EXPECT_THAT(fake_->violations, testing::IsEmpty());
    }
  }
}

TEST_P(VendorContractTest, EveryByteIsCopiedOnce) {
  const uint64_t before = fake_->copies;
  const uint64_t to_device = fake_->copied[0], to_host = fake_->copied[1];
  const uint64_t on_device = fake_->copied[2];
  ASSERT_TRUE(Scenario().ok());
  EXPECT_EQ(fake_->copies - before, 3u);
  EXPECT_EQ(fake_->copied[0] - to_device, kBytes);
  EXPECT_EQ(fake_->copied[1] - to_host, kBytes);
  EXPECT_EQ(fake_->copied[2] - on_device, kBytes);
}

TEST_P(VendorContractTest, WhatIsNotThereIsSaid) {
  EXPECT_EQ(Create(kMemory, 3).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Create(fake_->memory_bytes + 4096).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetParam().create(0, kMemory, "libterrace-no-such-library.so").status().code(),
            absl::StatusCode::kNotFound);
  // A library that has not what is needed names it.
  const std::string other = FakeLibrary(GetParam().name == "ascend" ? "cambricon" : "ascend");
  EXPECT_EQ(GetParam().create(0, kMemory, other).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(fake_->Alive(), 0u);
  EXPECT_THAT(fake_->violations, testing::IsEmpty());
}

TEST_P(VendorContractTest, TakesWhatIsFreeButForTheDriversPart) {
  auto device = Create(0);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->info().kind, GetParam().name);
  EXPECT_EQ((*device)->info().memory_bytes, fake_->memory_bytes - (uint64_t{512} << 20));
  EXPECT_EQ((*device)->info().alignment % 512, 0u);
}

INSTANTIATE_TEST_SUITE_P(Vendors, VendorContractTest, testing::ValuesIn(Vendors()),
                         [](const auto& info) { return info.param.name; });

// The stand-in's compiler gives back the text that it was given.
TEST(HipContractTest, KernelsAreCompiledForTheChipAndLaunchedWithTheirShape) {
  VendorFake* fake = FakeOf("hip");
  fake->Arm(0, 0);
  fake->launched.clear();
  auto driver = hip::LoadDriver(FakeLibrary("hip"));
  ASSERT_TRUE(driver.ok()) << driver.status();
  cuda::CompilerMaker maker = hip::Hiprtc();
  maker.libraries = {FakeLibrary("hip")};
  auto compiler = cuda::Compiler::Open(maker);
  ASSERT_TRUE(compiler.ok()) << compiler.status();
  CudaOptions options;
  options.kind = "hip";
  options.memory_bytes = kMemory;
  {
    auto device = CreateCudaDevice(options, *driver, *std::move(compiler)).value();
    EXPECT_EQ(device->info().description, "Stand-in (gfx906:sramecc+:xnack-)");
    auto kernel = device->CreateKernel({"add", nullptr, "KERNEL(add)(int n) {}", "PLUS=1"});
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    EXPECT_THAT(fake->launched, testing::Contains("option --offload-arch=gfx906:sramecc+:xnack-"));
    EXPECT_THAT(fake->launched, testing::Contains("option -DPLUS=1"));
    auto stream = device->CreateStream().value();
    const KernelArgument arguments[] = {KernelArgument::Value(int32_t{5})};
    ASSERT_TRUE(stream->Launch(**kernel, {{3, 2, 1}, {64, 2, 1}}, arguments).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
    EXPECT_EQ(fake->launched.back(), "3x2x1 groups of 64x2x1");
    EXPECT_EQ(device->CreateKernel({"absent", nullptr, "KERNEL(x)(int n) {}"}).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(device->CreateKernel({"add", nullptr, "broken"}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(fake->Alive(), 0u);
  EXPECT_THAT(fake->violations, testing::IsEmpty());
}

TEST(CudaContractTest, KernelsGetTheirArgumentsAsTheDialectDeclaresThem) {
  VendorFake* fake = FakeOf("cuda");
  fake->Arm(0, 0);
  auto device = OfShape(cuda::LoadDriver(FakeLibrary("cuda")), "cuda", 0, kMemory).value();
  EXPECT_EQ(device->info().description, "Stand-in (sm_90)");
  EXPECT_TRUE(device->info().tile_product);
  std::byte* data = device->Allocate(4096).value();
  EXPECT_EQ(device->KernelAddress(data), reinterpret_cast<uintptr_t>(data));
  auto kernel = device->CreateKernel({"add", nullptr, "KERNEL(add)(int n) {}"}).value();
  auto stream = device->CreateStream().value();
  fake->parameters = 6;
  fake->launched.clear();
  const KernelArgument arguments[] = {
      KernelArgument::Memory(data + 8), KernelArgument::Space(), KernelArgument::Value(int32_t{5}),
      KernelArgument::Value(int64_t{-2}), KernelArgument::Value(1.0f)};
  ASSERT_TRUE(stream->Launch(*kernel, {{3, 2, 1}, {64, 2, 1}}, arguments).ok());
  EXPECT_FALSE(stream->Launch(*kernel, {{1, 1, 1}, {2048, 1, 1}}, arguments).ok());
  const KernelArgument outside[] = {KernelArgument::Memory(&fake)};
  EXPECT_FALSE(stream->Launch(*kernel, {}, outside).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  fake->parameters = 0;
  EXPECT_THAT(fake->launched, testing::ElementsAre("3x2x1 groups of 64x2x1"));
  EXPECT_EQ(fake->launched_parameters,
            (std::vector<uint64_t>{reinterpret_cast<uintptr_t>(data + 8), 0, 0, 5,
                                   static_cast<uint64_t>(-2), 0x3f800000}));
}

TEST(MusaContractTest, ArchitectureIsNamedByItsNumbers) {
  VendorFake* fake = FakeOf("musa");
  fake->Arm(0, 0);
  auto device = OfShape(musa::LoadDriver(FakeLibrary("musa")), "musa", 0, kMemory).value();
  EXPECT_EQ(device->info().description, "Stand-in (mp_31)");
}

TEST(AscendContractTest, CodesBecomeStatuses) {
  auto runtime = ascend::LoadRuntime(FakeLibrary("ascend"));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_TRUE(ascend::ToStatus(*runtime, 0, "call").ok());
  EXPECT_EQ(ascend::ToStatus(*runtime, 207018, "call").code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ascend::ToStatus(*runtime, 107000, "call").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ascend::ToStatus(*runtime, 107001, "call").code(), absl::StatusCode::kNotFound);
}

TEST(CambriconContractTest, CodesBecomeStatuses) {
  auto runtime = cambricon::LoadRuntime(FakeLibrary("cambricon"));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_TRUE(cambricon::ToStatus(*runtime, 0, "call").ok());
  EXPECT_EQ(cambricon::ToStatus(*runtime, 100006, "call").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cambricon::ToStatus(*runtime, 100004, "call").code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace terrace::device
