// Safetensors folders as arguments of commands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cli.h"

namespace terrace::cli {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;
namespace json = boost::json;

class CheckpointCommandsTest : public ::testing::Test {
 protected:
  CheckpointCommandsTest() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~CheckpointCommandsTest() override { fs::remove_all(folder_); }

  int Terrace(const std::vector<std::string>& arguments, const std::string& input = "") {
    std::istringstream in(input);
    std::ostringstream out, err;
    Io io{.in = &in,
          .out = &out,
          .err = &err,
          .environment = {{"TERRACE_STORAGE_DISK_PATH", folder_ + "/data"},
                          {"TERRACE_MEMORY_DEVICE_BUDGET", "64MiB"},
                          {"TERRACE_DEVICE_THREADS", "1"}}};
    const int code = RunCli(arguments, &io);
    out_ = out.str();
    err_ = err.str();
    return code;
  }
  static std::string Checkpoint(const std::string& name) {
    return std::string(TERRACE_TEST_DATA) + "/checkpoints/" + name;
  }
  std::string ReadFile(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::string folder_ = ::testing::TempDir() + "/terrace_checkpoint_commands";
  std::string out_, err_;
};

TEST_F(CheckpointCommandsTest, ConvertWritesTheSameModel) {
  const std::string gguf = folder_ + "/granite.gguf";
  ASSERT_EQ(Terrace({"convert", Checkpoint("granite"), gguf}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr(" tensors, "));
  EXPECT_EQ(Terrace({"convert", Checkpoint("granite"), gguf}), 1);
  EXPECT_THAT(err_, HasSubstr("is there already"));
  for (const auto& [model, file] : {std::pair(Checkpoint("granite"), "a"), std::pair(gguf, "b")}) {
    ASSERT_EQ(Terrace({"debug", "logits", model, "--tokens", "5,6,7,8,9,10", "--out",
                       folder_ + "/" + file}),
              0)
        << err_;
  }
  EXPECT_GT(ReadFile("a").size(), 0u);
  EXPECT_EQ(ReadFile("a"), ReadFile("b"));
}

TEST_F(CheckpointCommandsTest, ShowTakesAFolder) {
  ASSERT_EQ(Terrace({"show", Checkpoint("granite"), "--json"}), 0) << err_;
  const json::value facts = json::parse(out_);
  EXPECT_EQ(facts.at("architecture").as_string(), "granite");
  EXPECT_THAT(out_, HasSubstr("BF16"));
  EXPECT_EQ(Terrace({"show", folder_}), 1);
  EXPECT_THAT(err_, HasSubstr("config.json"));
}

TEST_F(CheckpointCommandsTest, EmbedGivesAVectorALine) {
  const std::string model = folder_ + "/bert";
  fs::copy(Checkpoint("bert"), model);
  std::ofstream(model + "/tokenizer.json") << R"({
      "normalizer":{"type":"BertNormalizer"},"pre_tokenizer":{"type":"BertPreTokenizer"},
      "post_processor":{"type":"BertProcessing","cls":["[CLS]",1],"sep":["[SEP]",2]},
      "model":{"type":"WordPiece","unk_token":"[UNK]",
               "vocab":{"[UNK]":0,"[CLS]":1,"[SEP]":2,"hello":3,"wor":4,"##ld":5}}})";
  ASSERT_EQ(Terrace({"debug", "embed", model}, "Hello world\nhello\nHELLO World\n"), 0) << err_;
  std::istringstream lines(out_);
  std::vector<json::value> vectors;
  for (std::string line; std::getline(lines, line);) vectors.push_back(json::parse(line));
  ASSERT_EQ(vectors.size(), 3u);
  EXPECT_EQ(vectors[0], vectors[2]);
  EXPECT_NE(vectors[0], vectors[1]);
  double squares = 0;
  for (const json::value& x : vectors[0].as_array()) {
    squares += x.to_number<double>() * x.to_number<double>();
  }
  EXPECT_EQ(vectors[0].as_array().size(), 64u);
  EXPECT_NEAR(squares, 1.0, 1e-5);
  EXPECT_EQ(Terrace({"debug", "embed", Checkpoint("granite")}, "x\n"), 1);
}

}  // namespace
}  // namespace terrace::cli
