#include "cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace terrace::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Result {
  int code = 0;
  std::string out;
  std::string err;
};

// Runs the command with a store of its own, so that what the machine holds does not matter.
Result RunTerrace(std::vector<std::string> arguments, const std::string& input = "",
                  std::vector<std::pair<std::string, std::string>> environment = {}) {
  std::istringstream in(input);
  std::ostringstream out;
  std::ostringstream err;
  environment.emplace_back("TERRACE_STORAGE_DISK_PATH",
                           ::testing::TempDir() + "/terrace_cli_store");
  Io io{.in = &in, .out = &out, .err = &err, .environment = std::move(environment)};
  Result result;
  result.code = RunCli(arguments, &io);
  result.out = out.str();
  result.err = err.str();
  return result;
}

std::string Tiny(const std::string& name) {
  return std::string(TERRACE_TEST_DATA) + "/golden/arch/" + name + ".gguf";
}

TEST(CliTest, VersionAsTextAndJson) {
  EXPECT_THAT(RunTerrace({"version"}).out, StartsWith("terrace 0."));
  EXPECT_EQ(RunTerrace({"--version"}).out, RunTerrace({"version"}).out);
  EXPECT_THAT(RunTerrace({"version", "--json"}).out, StartsWith("{\"version\":\"0."));
}

TEST(CliTest, WrongArgumentsSayWhereHelpIs) {
  Result result = RunTerrace({"config", "check", "--nonsense"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("nonsense"), HasSubstr("Try: terrace config check --help")));
  EXPECT_EQ(RunTerrace({}).code, 2);
  EXPECT_EQ(RunTerrace({"nonsense"}).code, 2);
  EXPECT_EQ(RunTerrace({"show"}).code, 2);
}

TEST(CliTest, EveryCommandHasHelpAndJson) {
  Result all = RunTerrace({"--help"});
  EXPECT_EQ(all.code, 0);
  const std::vector<std::vector<std::string>> commands = {{"serve"},
                                                          {"run"},
                                                          {"pull"},
                                                          {"list"},
                                                          {"show"},
                                                          {"rm"},
                                                          {"rollback"},
                                                          {"import"},
                                                          {"quantize"},
                                                          {"version"},
                                                          {"config", "check"},
                                                          {"config", "import"},
                                                          {"bench"},
                                                          {"debug", "tokenize"},
                                                          {"debug", "render"},
                                                          {"debug", "logits"},
                                                          {"debug", "variants"},
                                                          {"verify", "ops"},
                                                          {"doctor"},
                                                          {"replay"},
                                                          {"verify", "perplexity"},
                                                          {"verify", "context"},
                                                          {"verify", "stability"},
                                                          {"profile", "request"},
                                                          {"profile", "switch"},
                                                          {"profile", "pages"}};
  for (std::vector<std::string> command : commands) {
    EXPECT_THAT(all.out, HasSubstr("  " + command[0]));
    command.emplace_back("--help");
    Result help = RunTerrace(command);
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, AllOf(HasSubstr("--json"), HasSubstr("Usage: terrace " + command[0])));
  }
}

TEST(CliTest, ConfigCheckExplainsWhereValuesComeFrom) {
  std::string file = ::testing::TempDir() + "/cli_test.yaml";
  std::ofstream(file) << "memory:\n  device_budget: 2GiB\nmodels: [{name: m, source: m.gguf}]\n";
  Result result =
      RunTerrace({"config", "check", file, "--port", "9000"}, "", {{"TERRACE_LOG_LEVEL", "debug"}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("2GiB"), HasSubstr(file + ":2"), HasSubstr("--server.port"),
                    HasSubstr("TERRACE_LOG_LEVEL"), HasSubstr("default")));
  result = RunTerrace({"config", "check", "--config", file, "--json"});
  EXPECT_THAT(result.out, HasSubstr("\"memory.device_budget\":{\"value\":\"2GiB\""));
  std::ofstream(file) << "memory:\n  device_bugdet: 2GiB\n";
  result = RunTerrace({"config", "check", file});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "terrace: " + file +
                            ":2: unknown key 'memory.device_bugdet'; did you mean "
                            "'memory.device_budget'?\n");
  EXPECT_EQ(RunTerrace({"config", "check", "/does/not/exist.yaml"}).code, 1);
}

TEST(CliTest, ShowDescribesAModel) {
  Result result = RunTerrace({"show", Tiny("qwen3")});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("architecture    qwen3"), HasSubstr("F16"),
                                HasSubstr("chat template   yes"), HasSubstr("blk.0.attn"),
                                HasSubstr("vocabulary      512 tokens (gpt2)")));
  EXPECT_LT(result.out.find("blk.0.attn "), result.out.find("blk.0.ffn "));
  EXPECT_LT(result.out.find("blk.0.ffn "), result.out.find("blk.1.attn "));
  EXPECT_LT(result.out.find("blk.1.attn "), result.out.find("embed  "));
  EXPECT_LT(result.out.find("embed  "), result.out.find("head  "));
  EXPECT_EQ(result.out.find("blk.0.attn "), result.out.rfind("blk.0.attn ")) << "listed once";
  result = RunTerrace({"show", Tiny("qwen3"), "--json"});
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("\"architecture\":\"qwen3\""), HasSubstr("\"runs\":true")));
}

TEST(CliTest, UnknownModelsAreNamedWithWhatThereIs) {
  Result result = RunTerrace({"show", "qwen"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("no model 'qwen'"));
  result = RunTerrace({"list", "--model", "tiny=" + Tiny("llama"), "--model", "gone=/gone.gguf"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("tiny"), HasSubstr("no such file")));
}

TEST(CliTest, TokenizeReadsStandardInputExactly) {
  Result plain = RunTerrace({"debug", "tokenize", Tiny("qwen3")}, "a<|im_end|>");
  Result special = RunTerrace({"debug", "tokenize", Tiny("qwen3"), "--special"}, "a<|im_end|>");
  ASSERT_EQ(plain.code, 0) << plain.err;
  ASSERT_EQ(special.code, 0) << special.err;
  EXPECT_NE(plain.out, special.out);
  // One token for the letter, one for the marker.
  EXPECT_EQ(std::count(special.out.begin(), special.out.end(), ' '), 1) << special.out;
  EXPECT_NE(RunTerrace({"debug", "tokenize", Tiny("qwen3")}, "a\n").out,
            RunTerrace({"debug", "tokenize", Tiny("qwen3")}, "a").out)
      << "a line's end is text too";
  EXPECT_EQ(RunTerrace({"debug", "tokenize", Tiny("qwen3")}, "").out, "\n");
}

TEST(Help, IsThereForEveryCommandByTheWordToo) {
  EXPECT_EQ(RunTerrace({"help"}).out, RunTerrace({"--help"}).out);
  EXPECT_EQ(RunTerrace({"help", "key", "add"}).out, RunTerrace({"key", "add", "--help"}).out);
  const Result wrong = RunTerrace({"help", "key", "lose"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("there is no command 'key lose'"));
  EXPECT_EQ(RunTerrace({"help", "--form", "pdf"}).code, 1);
}

TEST(Help, TheManPageHasEveryCommandAndItsOptions) {
  const std::string page = RunTerrace({"help", "--form", "man"}).out;
  EXPECT_THAT(page, StartsWith(".TH \"terrace\" 1 "));
  for (const char* name : {"serve", "run", "key add", "debug tokenize", "verify ops", "help"}) {
    EXPECT_THAT(page, HasSubstr(std::string("\n.SS terrace ") + name + "\n"));
  }
  EXPECT_THAT(page, HasSubstr("\\-\\-server.drain_timeout"));
  EXPECT_THAT(RunTerrace({"help", "--form", "man", "key", "add"}).out,
              AllOf(StartsWith(".TH \"terrace-key-add\" 1 "), HasSubstr("\\-\\-tenant")));
}

TEST(Help, TheShellCompletesCommandsAndOptions) {
  const std::string script = RunTerrace({"help", "--form", "bash"}).out;
  EXPECT_THAT(script, HasSubstr("'key') choices='add list revoke --help'"));
  EXPECT_THAT(script, HasSubstr("'key add') choices='--help --json"));
  // What the shells make of them: tests/e2e/test_completion.py.
  EXPECT_THAT(RunTerrace({"help", "--form", "zsh"}).out, StartsWith("#compdef terrace\n"));
  EXPECT_THAT(RunTerrace({"help", "--form", "fish"}).out,
              HasSubstr("-n '__terrace_at \"key\"' -a add"));
}

}  // namespace
}  // namespace terrace::cli
