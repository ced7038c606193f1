// The commands that run an engine, on the tiny golden models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "../support/listener.h"
#include "cli/cli.h"

namespace terrace::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

namespace json = boost::json;

class EngineCommandsTest : public ::testing::Test {
 protected:
  EngineCommandsTest() { std::filesystem::remove_all(folder_); }
  ~EngineCommandsTest() override { std::filesystem::remove_all(folder_); }

  int Terrace(const std::vector<std::string>& arguments, const std::string& input = "") {
    std::istringstream in(input);
    std::ostringstream out;
    std::ostringstream err;
    Io io{.in = &in,
          .out = &out,
          .err = &err,
          .environment = {{"TERRACE_STORAGE_DISK_PATH", folder_},
                          {"TERRACE_MEMORY_DEVICE_BUDGET", "64MiB"},
                          {"TERRACE_DEVICE_THREADS", "1"}}};
    const int code = RunCli(arguments, &io);
    out_ = out.str();
    err_ = err.str();
    return code;
  }
  static std::string Tiny(const std::string& name) {
    return std::string(TERRACE_TEST_DATA) + "/golden/arch/" + name;
  }
  std::string Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
    return folder_ + "/" + name;
  }

  const std::string folder_ = ::testing::TempDir() + "/terrace_engine_commands";
  std::string out_, err_;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<float> ReadFloats(const std::string& path) {
  const std::string bytes = ReadFile(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

TEST_F(EngineCommandsTest, LogitsHaveARowATokenAndAreThoseOfTheModel) {
  const json::value golden = json::parse(ReadFile(Tiny("qwen3.json")));
  std::string tokens;
  for (const json::value& token : golden.at("tokens").as_array()) {
    tokens += (tokens.empty() ? "" : ",") + std::to_string(token.as_int64());
  }
  const std::string file = Write("logits.f32", "");
  ASSERT_EQ(Terrace({"debug", "logits", Tiny("qwen3.gguf"), "--tokens", tokens, "--out", file,
                     "--variant", "ref"}),
            0)
      << err_;
  const std::vector<float> expected = ReadFloats(Tiny("qwen3.logits.f32"));
  const std::vector<float> computed = ReadFloats(file);
  ASSERT_EQ(computed.size(), expected.size());
  float largest = 0;
  for (float value : expected) largest = std::max(largest, std::abs(value));
  // Keys and values are kept in F16 (relative rounding 2^-11 each), the rest is float32: a few
  // roundings of that size remain of logits. The exact bounds are tested with the architectures.
  const float tolerance = 8 * largest * 0x1p-11f;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(computed[i], expected[i], tolerance) << "logit " << i;
  }
}

TEST_F(EngineCommandsTest, LogitsRefuseWhatIsNoTokenAndNoVariant) {
  const std::string file = folder_ + "/x.f32";
  EXPECT_EQ(Terrace({"debug", "logits", Tiny("qwen3.gguf"), "--tokens", "1,512", "--out", file}),
            1);
  EXPECT_THAT(err_, HasSubstr("512 is not a token of this model"));
  EXPECT_EQ(Terrace({"debug", "logits", Tiny("qwen3.gguf"), "--tokens", "1", "--out", file,
                     "--variant", "avx1024"}),
            1);
  EXPECT_THAT(err_, AllOf(HasSubstr("avx1024"), HasSubstr("portable")));
  EXPECT_EQ(Terrace({"debug", "logits", Tiny("qwen3.gguf"), "--tokens", "x", "--out", file}), 2);
}

TEST_F(EngineCommandsTest, VariantsNameTheOneThatIsChosen) {
  ASSERT_EQ(Terrace({"debug", "variants", "--json"}), 0);
  int chosen = 0;
  const json::value variants = json::parse(out_);
  for (const json::value& variant : variants.as_array()) {
    if (!variant.at("chosen").as_bool()) continue;
    ++chosen;
    EXPECT_TRUE(variant.at("supported").as_bool());
  }
  EXPECT_EQ(chosen, 1) << out_;
}

TEST_F(EngineCommandsTest, VerifyOpsChecksOneVariant) {
  ASSERT_EQ(Terrace({"verify", "ops", "--variant", "portable", "--no-rates", "--json"}), 0) << err_;
  const json::value rows = json::parse(out_);
  ASSERT_GT(rows.as_array().size(), 10u);
  for (const json::value& row : rows.as_array()) {
    EXPECT_EQ(row.at("variant").as_string(), "portable");
    EXPECT_TRUE(row.at("holds").as_bool());
    EXPECT_TRUE(row.at("rate").is_null());
  }
  EXPECT_EQ(Terrace({"verify", "ops", "--variant", "nonsense"}), 1);
  EXPECT_THAT(err_, HasSubstr("nonsense"));
}

TEST_F(EngineCommandsTest, RenderWritesExactlyTheText) {
  const std::string source =
      Write("t.jinja", "{{ a }}|{{ b | tojson }}|{{ strftime_now('%Y') }}\n");
  const std::string context = Write("c.json", "{\"a\": \"x\\u0000y\", \"b\": [1, \"é\"]}");
  ASSERT_EQ(Terrace({"debug", "render", source, context, "--now", "0"}), 0) << err_;
  EXPECT_EQ(out_, std::string("x\0y|[1, \"é\"]|1970", 18)) << "no line end is added";
  ASSERT_EQ(Terrace({"debug", "render", source, context, "--now", "0", "--json"}), 0);
  const json::value all = json::parse(out_);
  EXPECT_FALSE(all.at("spans").at(0).at("trusted").as_bool()) << "this came from the context";
  EXPECT_TRUE(all.at("spans").at(1).at("trusted").as_bool());

  EXPECT_EQ(Terrace({"debug", "render", Write("bad.jinja", "{% if %}"), context}), 1);
  EXPECT_THAT(err_, HasSubstr("line 1"));
  EXPECT_EQ(Terrace({"debug", "render", source, Write("bad.json", "[1]")}), 1);
  EXPECT_EQ(Terrace({"debug", "render", source, folder_ + "/absent.json"}), 1);
}

TEST_F(EngineCommandsTest, RunAnswersTheSameFromArgumentAndPipe) {
  const std::vector<std::string> run = {"run", Tiny("qwen3.gguf"), "--temperature",
                                        "0",   "--max-tokens",     "8"};
  std::vector<std::string> with_prompt = run;
  with_prompt.insert(with_prompt.begin() + 2, "Hello there");
  ASSERT_EQ(Terrace(with_prompt), 0) << err_;
  const std::string first = out_;
  EXPECT_GT(first.size(), 1u);
  EXPECT_THAT(err_, HasSubstr("answer 8 tokens"));
  ASSERT_EQ(Terrace(run, "Hello there"), 0) << err_;
  EXPECT_EQ(out_, first) << "the second time, the weights came from the image";
}

TEST_F(EngineCommandsTest, RunReportsAsJsonAndEndsAtStopText) {
  const std::vector<std::string> run = {
      "run", Tiny("llama.gguf"), "Once", "--raw", "--seed", "7", "--json", "--max-tokens", "16"};
  ASSERT_EQ(Terrace(run), 0) << err_;
  json::value answer = json::parse(out_);
  const std::string text(answer.at("text").as_string());
  EXPECT_EQ(answer.at("completion_tokens").as_int64(), 16) << out_;
  EXPECT_EQ(answer.at("finish_reason").as_string(), "length");
  ASSERT_EQ(Terrace(run), 0);
  EXPECT_EQ(json::parse(out_).at("text").as_string(), text) << "a seed makes it repeatable";

  // The text of a run is the same up to the stop text, whatever that is.
  ASSERT_GE(text.size(), 6u);
  const auto inside = [&](size_t i) {
    return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
  };
  size_t at = text.size() / 2;
  while (at > 0 && inside(at)) --at;
  size_t end = at + 1;
  while (inside(end)) ++end;
  const std::string stop = text.substr(at, end - at);  // a whole character
  std::vector<std::string> stopped = run;
  stopped.insert(stopped.end(), {"--stop", stop});
  ASSERT_EQ(Terrace(stopped), 0) << err_;
  answer = json::parse(out_);
  EXPECT_EQ(answer.at("text").as_string(), text.substr(0, text.find(stop)));
  EXPECT_EQ(answer.at("finish_reason").as_string(), "stop");
}

TEST_F(EngineCommandsTest, RunChecksItsNumbers) {
  for (const auto& [flag, value] :
       std::vector<std::pair<std::string, std::string>>{{"--temperature", "3"},
                                                        {"--temperature", "nan"},
                                                        {"--top-p", "-1"},
                                                        {"--max-tokens", "0"},
                                                        {"--top-k", "-1"}}) {
    EXPECT_EQ(Terrace({"run", Tiny("qwen3.gguf"), "x", flag + "=" + value}), 1) << flag << value;
    EXPECT_THAT(err_, HasSubstr(flag));
  }
}

TEST_F(EngineCommandsTest, BudgetThatTheDeviceLacksIsRefusedByName) {
  EXPECT_EQ(Terrace({"run", Tiny("qwen3.gguf"), "x", "--memory.device_budget", "9000TiB"}), 1);
  EXPECT_THAT(err_, HasSubstr("memory.device_budget is 8.8 PiB, but the cpu device has only"));
}

TEST_F(EngineCommandsTest, RunsOnADeviceWithMemoryOfItsOwn) {
  const std::vector<std::string> run = {"run",   Tiny("gemma3.gguf"), "x", "--temperature",
                                        "0",     "--max-tokens",      "4", "--raw",
                                        "--json"};
  ASSERT_EQ(Terrace(run), 0) << err_;
  const std::string on_cpu(json::parse(out_).at("text").as_string());
  std::vector<std::string> simulated = run;
  simulated.insert(simulated.end(), {"--device.kind", "sim", "--device.sim.memory", "64MiB"});
  ASSERT_EQ(Terrace(simulated), 0) << err_;
  EXPECT_EQ(json::parse(out_).at("text").as_string(), on_cpu);
}

TEST_F(EngineCommandsTest, RunsOnAnOpenClDeviceAndKeepsItsKernels) {
  ASSERT_EQ(Terrace({"debug", "devices", "--json"}), 0) << err_;
  if (json::parse(out_).as_array().empty()) GTEST_SKIP() << "no OpenCL device on this machine";
  const std::vector<std::string> run = {"run",
                                        Tiny("gemma3.gguf"),
                                        "x",
                                        "--temperature",
                                        "0",
                                        "--raw",
                                        "--max-tokens",
                                        "4",
                                        "--json",
                                        "--storage.disk.path",
                                        folder_ + "/data"};
  ASSERT_EQ(Terrace(run), 0) << err_;
  const std::string on_cpu(json::parse(out_).at("text").as_string());
  std::vector<std::string> on_device = run;
  on_device.insert(on_device.end(), {"--device.kind", "opencl", "--device.memory", "128MiB"});
  ASSERT_EQ(Terrace(on_device), 0) << err_;
  EXPECT_EQ(json::parse(out_).at("text").as_string(), on_cpu);
  EXPECT_FALSE(std::filesystem::is_empty(folder_ + "/data/kernels"));

  on_device.insert(on_device.end(), {"--device.variant", "portable"});
  EXPECT_EQ(Terrace(on_device), 1);
  EXPECT_THAT(err_, HasSubstr("device.variant portable"));
  on_device.resize(run.size());
  on_device.insert(on_device.end(),
                   {"--device.kind", "opencl", "--device.opencl.device", "no such chip"});
  EXPECT_EQ(Terrace(on_device), 1);
  EXPECT_THAT(err_, HasSubstr("no such chip"));
}

TEST_F(EngineCommandsTest, AChipThatIsNotThereIsNamed) {
  EXPECT_EQ(
      Terrace({"run", Tiny("gemma3.gguf"), "x", "--device.kind", "gpu", "--device.number", "1023"}),
      1);
  EXPECT_THAT(err_, HasSubstr("device.kind gpu"));
  EXPECT_EQ(Terrace({"run", Tiny("gemma3.gguf"), "x", "--device.kind", "npu"}), 1);
  EXPECT_THAT(err_, HasSubstr("device.kind npu"));
}

TEST_F(EngineCommandsTest, ImportPreparesOnce) {
  ASSERT_EQ(Terrace({"import", Tiny("qwen2.gguf"), "--json"}), 0) << err_;
  EXPECT_FALSE(json::parse(out_).at("already_there").as_bool());
  ASSERT_EQ(Terrace({"import", Tiny("qwen2.gguf"), "--json"}), 0) << err_;
  EXPECT_TRUE(json::parse(out_).at("already_there").as_bool());
}

TEST_F(EngineCommandsTest, VersionsAreRolledBackAndRemoved) {
  ASSERT_EQ(Terrace({"pull", Tiny("qwen2.gguf"), "--name", "m"}), 0) << err_;
  EXPECT_EQ(Terrace({"rollback", "m"}), 1);
  EXPECT_THAT(err_, HasSubstr("m@1 is the oldest version"));
  ASSERT_EQ(Terrace({"pull", Tiny("llama.gguf"), "--name", "m"}), 0) << err_;
  ASSERT_EQ(Terrace({"show", "m", "--json"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("\"architecture\":\"llama\""));
  ASSERT_EQ(Terrace({"rollback", "m"}), 0) << err_;
  EXPECT_EQ(out_, "m: 1 is current, 2 was\n");
  ASSERT_EQ(Terrace({"show", "m", "--json"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("\"architecture\":\"qwen2\""));
  ASSERT_EQ(Terrace({"rm", "m@2"}), 0) << err_;
  EXPECT_EQ(Terrace({"show", "m@2"}), 1);
  ASSERT_EQ(Terrace({"rm", "m"}), 0) << err_;
  EXPECT_EQ(Terrace({"show", "m"}), 1);
}

TEST_F(EngineCommandsTest, ServeWithoutModelsSaysHowToGetOne) {
  EXPECT_EQ(Terrace({"serve", "--port", "0", "--server.metrics_port", "off", "--server.grpc_port",
                     "off", "--server.admin_port", "off"}),
            1);
  EXPECT_THAT(err_, AllOf(HasSubstr("no model to serve"), HasSubstr("--model NAME=FILE")));
}

// A taken port ends the start before any model is looked at: the model here does not even exist.
TEST_F(EngineCommandsTest, ServeFailsAtOnceOnATakenPort) {
  const testing_support::Listener listener;
  const std::string port = std::to_string(listener.port());
  EXPECT_EQ(Terrace({"serve", "--model", "m=/does/not/exist.gguf", "--port", port,
                     "--server.metrics_port", "off", "--server.grpc_port", "off",
                     "--server.admin_port", "off"}),
            1);
  EXPECT_THAT(err_, AllOf(HasSubstr("127.0.0.1"), HasSubstr(port)));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/images"));
}

TEST_F(EngineCommandsTest, VerifyContextReadsALongPromptInPiecesOfTwoSizes) {
  ASSERT_EQ(Terrace({"verify", "context", Tiny("qwen3.gguf"), "--tokens", "100", "--pieces", "64,7",
                     "--json"}),
            0)
      << err_;
  const json::object told = json::parse(out_).as_object();
  EXPECT_EQ(told.at("tokens").to_number<int>(), 100);
  EXPECT_TRUE(told.at("holds").as_bool());
  EXPECT_TRUE(told.at("same_answer").as_bool());
  ASSERT_EQ(told.at("parts").as_array().size(), 4u);
  for (const json::value& part : told.at("parts").as_array()) {
    EXPECT_LT(part.at("mean_logprob").to_number<double>(), 0);
    EXPECT_LE(part.at("worst_difference").to_number<double>(),
              told.at("tolerance").to_number<double>());
  }
  EXPECT_EQ(told.at("runs").as_array().size(), 2u);
  EXPECT_EQ(Terrace({"verify", "context", Tiny("qwen3.gguf"), "--tokens", "1000000"}), 1);
  EXPECT_THAT(err_, HasSubstr("that the context leaves"));
  EXPECT_EQ(Terrace({"verify", "context", Tiny("qwen3.gguf"), "--pieces", "64"}), 1);
  EXPECT_THAT(err_, HasSubstr("two or more"));
}

}  // namespace
}  // namespace terrace::cli
