// What `terrace bench` is made of: mixes, traces, distributions, figures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/random.h"
#include "cli/cli.h"
#include "cli/load/figures.h"
#include "cli/load/mix.h"
#include "cli/page/page.h"

namespace terrace::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LoadMixTest, ReadsClasses) {
  const absl::StatusOr<LoadMix> mix = ParseMix(
      "duration: 10m\nwarm_up: 5s\nseed: 7\nclasses:\n"
      "  - {name: short, models: [a, b], rate: 2.5, prompt_tokens: 30-300, output_tokens: 8,\n"
      "     sla: realtime, key_env: QUICK, goal: 300ms, zipf: 1}\n"
      "  - {name: long, models: c, clients: 3, pause: 100ms, chat: on, shared_tokens: 40}\n");
  ASSERT_TRUE(mix.ok()) << mix.status();
  EXPECT_EQ(mix->duration_us, 600'000'000);
  EXPECT_EQ(mix->warm_up_us, 5'000'000);
  EXPECT_EQ(mix->seed, 7u);
  const LoadClass& quick = mix->classes.at(0);
  EXPECT_THAT(quick.models, ElementsAre("a", "b"));
  EXPECT_EQ(quick.rate, 2.5);
  EXPECT_EQ(quick.prompt_tokens.least, 30);
  EXPECT_EQ(quick.prompt_tokens.most, 300);
  EXPECT_EQ(quick.goal_us, 300'000);
  EXPECT_EQ(mix->classes.at(1).clients, 3);
  EXPECT_TRUE(mix->classes.at(1).chat);
}

TEST(LoadMixTest, SaysWhereAMixIsWrong) {
  for (const auto& [yaml, message] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "mapping"},
           {"duration: 1m\n", "at least one class"},
           {"duratoin: 1m\nclasses: []\n", "line 1: unknown key 'duratoin'; did you mean"},
           {"classes:\n  - {rate: 1}\n  - {raet: 1}\n", "line 3: unknown key 'raet'; did you mean"},
           {"classes:\n  - {rate: 1, clients: 2}\n", "either a rate or clients"},
           {"classes:\n  - {name: a}\n", "either a rate or clients"},
           {"classes:\n  - {rate: -1}\n", "line 2: rate: '-1'"},
           {"classes:\n  - {clients: 1, prompt_tokens: 9-3}\n", "prompt_tokens"},
           {"classes:\n  - {clients: 1, chat: maybe}\n", "true or false"},
           {"classes: [\n", "line"}}) {
    const absl::StatusOr<LoadMix> mix = ParseMix(yaml);
    ASSERT_FALSE(mix.ok()) << yaml;
    EXPECT_THAT(std::string(mix.status().message()), HasSubstr(message)) << yaml;
  }
}

TEST(LoadTraceTest, TimesCountFromTheFirstRequest) {
  const absl::StatusOr<LoadMix> mix = ParseLoadTrace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n");
  ASSERT_TRUE(mix.ok()) << mix.status();
  ASSERT_EQ(mix->trace.size(), 2u);
  EXPECT_EQ(mix->trace[0].at_us, 0);
  EXPECT_NEAR(static_cast<double>(mix->trace[1].at_us), 4'314'579, 1000);
  EXPECT_EQ(mix->trace[1].prompt_tokens, 396);
  const absl::StatusOr<LoadMix> own =
      ParseLoadTrace("seconds,model,class,prompt_tokens,output_tokens\n5,m,x,1,2\n7.5,,y,3,4\n");
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->trace[1].at_us, 2'500'000);
  EXPECT_EQ(own->trace[0].model, "m");
  EXPECT_EQ(own->classes.at(own->trace[1].load_class).name, "y");
  for (const char* bad : {"", "a,b\n1,2\n", "seconds,prompt_tokens,output_tokens\nx,1,1\n",
                          "seconds,prompt_tokens,output_tokens\n1,0,1\n",
                          "seconds,prompt_tokens,output_tokens\n1\n"}) {
    EXPECT_FALSE(ParseLoadTrace(bad).ok()) << bad;
  }
}

TEST(TimeDistributionTest, PercentilesAreThoseOfTheSortedValues) {
  constexpr uint64_t kSeed = 11;
  Random random(kSeed);
  TimeDistribution times;
  std::vector<int64_t> values;
  for (int i = 0; i < 5000; ++i) {
    values.push_back(static_cast<int64_t>(std::exp(random.Uniform() * 14)));
    times.Add(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double share : {0.01, 0.5, 0.9, 0.99, 1.0}) {
    const auto rank = static_cast<size_t>(std::ceil(share * 5000)) - 1;
    const auto want = static_cast<double>(values[rank]);
    // Half a bin, and the whole microseconds that values are given in.
    EXPECT_NEAR(times.Percentile(share), want, 0.0101 * want + 1) << "seed " << kSeed << share;
  }
  EXPECT_EQ(TimeDistribution().Percentile(0.5), 0);
  const auto curve = times.Curve(50);
  EXPECT_EQ(curve.size(), 50u);
  EXPECT_EQ(curve.back().second, 1.0);
}

TEST(LoadFiguresTest, CountWhatBecameOfRequests) {
  LoadFigures figures({"a", "b"}, {100'000, 0}, 10'000'000);
  LoadResult good{.load_class = 0,
                  .model = "m",
                  .due_us = 0,
                  .first_us = 50'000,
                  .end_us = 500'000,
                  .prompt_tokens = 10,
                  .output_tokens = 5,
                  .status = 200,
                  .error = "",
                  .gaps_us = {10'000, 20'000}};
  figures.Add(good);
  good.first_us = 300'000;  // beyond the goal
  figures.Add(good);
  LoadResult refused{.load_class = 1,
                     .model = "m",
                     .end_us = 2'000'000,
                     .status = 429,
                     .error = "busy",
                     .gaps_us = {}};
  figures.Add(refused);
  LoadResult failed = refused;
  failed.status = 500;
  figures.Add(failed);
  const LoadRow all = figures.All();
  EXPECT_EQ(all.asked, 4u);
  EXPECT_EQ(all.answered, 2u);
  EXPECT_EQ(all.refused, 1u);
  EXPECT_EQ(all.failed, 1u);
  EXPECT_EQ(all.in_goal, 1u);
  EXPECT_EQ(all.output_tokens, 10);
  EXPECT_NEAR(all.first.Percentile(0.5), 50'000, 600);
  EXPECT_THAT(figures.Text(4'000'000), HasSubstr("50.0% of first tokens within 0.1 s"));
  const boost::json::object json = figures.Json(4'000'000);
  EXPECT_EQ(json.at("rows").as_array().size(), 2u);
  EXPECT_EQ(json.at("all").at("requests_per_s").to_number<double>(), 0.5);
  EXPECT_EQ(json.at("errors").at("busy").to_number<int>(), 1);
}

TEST(PageTest, DataCannotLeaveItsElement) {
  const std::string page =
      MakePage("a <b>", {"palette.js"}, {{"name", "</script><script>alert(1)</script>"}});
  EXPECT_THAT(page, HasSubstr("<title>a &lt;b></title>"));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, HasSubstr("function palette("));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
}

TEST(BenchCommandTest, SaysWhatDoesNotGoTogether) {
  auto run = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "bench");
    std::istringstream in;
    std::ostringstream out, err;
    Io io{.in = &in, .out = &out, .err = &err, .environment = {}};
    EXPECT_EQ(RunCli(arguments, &io), 1);
    return err.str();
  };
  EXPECT_THAT(run({"--rate", "1", "--clients", "2"}), HasSubstr("one of them"));
  EXPECT_THAT(run({"x.yaml", "--trace", "y"}), HasSubstr("not both"));
  EXPECT_THAT(run({"absent.yaml"}), HasSubstr("absent.yaml"));
  EXPECT_THAT(run({"absent.yaml", "--rate", "2"}), HasSubstr("leave --rate"));
  EXPECT_THAT(run({"--duration", "1s", "--warm-up", "2s"}), HasSubstr("longer than the warm-up"));
  EXPECT_THAT(run({"--url", "http://127.0.0.1:1"}), HasSubstr("is the server running?"));
}

}  // namespace
}  // namespace terrace::cli
