// Writing GGUF files: what is written reads back, and a failure leaves nothing behind.
#include "format/gguf_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "format_testing.h"

namespace terrace::format {
namespace {

TEST(GgufWriter, GoldenModelsSurviveARoundTrip) {
  TempFolder folder;
  for (const char* name : {"arch/gemma3", "arch/mixtral", "quant/wide.Q4_K_M"}) {
    auto model = OpenGguf(std::string(TERRACE_TEST_DATA) + "/golden/" + name + ".gguf").value();
    GgufWriter writer;
    writer.AddMetadata(model.metadata);
    for (const TensorInfo& tensor : model.tensors) {
      writer.AddTensor(tensor.name, tensor.dtype, tensor.shape,
                       [&](uint64_t offset, std::span<std::byte> out) {
                         return model.ReadTensor(tensor, offset, out);
                       });
    }
    std::string path = folder / "copy.gguf";
    ASSERT_TRUE(writer.Write(path).ok());
    auto copy = OpenGguf(path);
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_EQ(copy->metadata.values(), model.metadata.values());
    ASSERT_EQ(copy->tensors.size(), model.tensors.size());
    for (size_t i = 0; i < model.tensors.size(); ++i) {
      std::vector<std::byte> want(model.tensors[i].bytes), got(copy->tensors[i].bytes);
      ASSERT_TRUE(model.ReadTensor(model.tensors[i], 0, want).ok());
      ASSERT_TRUE(copy->ReadTensor(copy->tensors[i], 0, got).ok());
      EXPECT_EQ(got, want) << model.tensors[i].name;
    }
  }
}

TEST(GgufWriter, A09AFullDiskLeavesNothingBehind) {
  TempFolder folder;
  GgufWriter writer;
  writer.AddTensor("t", DType::kF32, {{1 << 20}}, std::vector<std::byte>(4 << 20));
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = {1 << 20, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  absl::Status status = writer.Write(folder / "m.gguf");
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_TRUE(writer.Write(folder / "m.gguf").ok());
}

TEST(GgufWriter, AFailingTensorLeavesNothingBehind) {
  TempFolder folder;
  GgufWriter writer;
  writer.AddTensor("t", DType::kF32, {{16}}, std::vector<std::byte>(32));
  EXPECT_FALSE(writer.Write(folder / "m.gguf").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace terrace::format
