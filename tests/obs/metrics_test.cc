#include "obs/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricTable, NamesFollowThePrometheusRules) {
  std::set<std::string_view> names;
  const std::regex name_rule("terrace_[a-z][a-z_]*[a-z]"), label_rule("[a-z]+");
  for (const MetricInfo& info : MetricTable()) {
    std::string name(info.name);
    EXPECT_TRUE(std::regex_match(name, name_rule)) << name;
    EXPECT_TRUE(names.insert(info.name).second) << name << " is there twice";
    EXPECT_EQ(name.ends_with("_total"), info.type == MetricType::kCounter) << name;
    std::string base = name.substr(0, name.size() - (name.ends_with("_total") ? 6 : 0));
    EXPECT_TRUE(base.ends_with(info.unit)) << name << " does not end in its unit " << info.unit;
    EXPECT_TRUE(info.help.ends_with(".")) << name;
    EXPECT_EQ(info.buckets.empty(), info.type != MetricType::kHistogram) << name;
    for (size_t i = 1; i < info.buckets.size(); ++i) {
      EXPECT_LT(info.buckets[i - 1], info.buckets[i]) << name;
    }
    for (std::string_view label : info.labels) {
      EXPECT_TRUE(std::regex_match(std::string(label), label_rule)) << name << " " << label;
    }
  }
}

TEST(MetricTable, IsTheOneInTheDocument) {
  std::ifstream in(TERRACE_SOURCE_DIR "/docs/METRICS.md");
  std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(text.find(MetricTableMarkdown()), std::string::npos)
      << "docs/METRICS.md should hold this table:\n"
      << MetricTableMarkdown();
}

TEST(Metrics, RendersEachTypeInTextFormat) {
  Metrics metrics;
  metrics.Count(MetricId::kRequests, {"qwen", "200"});
  metrics.Count(MetricId::kRequests, {"qwen", "200"}, 2);
  metrics.Set(MetricId::kBudgetBytes, {"device"}, 1073741824);
  metrics.Observe(MetricId::kQueueSeconds, {"qwen"}, 0.02);
  std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("# TYPE terrace_requests_total counter\n"));
  EXPECT_THAT(text, HasSubstr("terrace_requests_total{code=\"200\",model=\"qwen\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("terrace_budget_bytes{tier=\"device\"} 1073741824\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE terrace_queue_seconds histogram\n"));
  EXPECT_THAT(text, HasSubstr("terrace_queue_seconds_count{model=\"qwen\"} 1\n"));
  // 0.02 lies between the bounds 0.01 and 0.025.
  EXPECT_THAT(text, HasSubstr("terrace_queue_seconds_bucket{model=\"qwen\",le=\"0.01\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("terrace_queue_seconds_bucket{model=\"qwen\",le=\"0.025\"} 1\n"));
}

TEST(Metrics, AHandleCountsIntoTheSameSeries) {
  Metrics metrics;
  Counter counter = metrics.CounterFor(MetricId::kGeneratedTokens, {"m"});
  counter.Add();
  metrics.Count(MetricId::kGeneratedTokens, {"m"});
  EXPECT_THAT(metrics.Render(), HasSubstr("terrace_generated_tokens_total{model=\"m\"} 2\n"));
}

TEST(Metrics, ACounterIsRaisedToATotalAndNeverLowered) {
  Metrics metrics;
  Counter counter = metrics.CounterFor(MetricId::kLinkBytes, {"disk to device"});
  counter.RaiseTo(10);
  counter.RaiseTo(7);
  counter.RaiseTo(12);
  EXPECT_THAT(metrics.Render(),
              HasSubstr("terrace_link_bytes_total{link=\"disk to device\"} 12\n"));
}

TEST(Metrics, ReadersThatRaiseTogetherDoNotOvershoot) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Counter counter = metrics.CounterFor(MetricId::kLinkBytes, {"l"});
      for (int total = 1; total <= 2000; ++total) counter.RaiseTo(total);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(metrics.Render(), HasSubstr("terrace_link_bytes_total{link=\"l\"} 2000\n"));
}

TEST(Metrics, HostileLabelValuesStayInsideTheirQuotes) {
  Metrics metrics;
  metrics.Count(MetricId::kErrors, {"a\"} 1\nevil{x=\"\xff"});
  std::string text = metrics.Render();
  EXPECT_THAT(text, Not(HasSubstr("\nevil")));
  EXPECT_THAT(text, HasSubstr("code=\"a\\\"} 1\\nevil{x=\\\"\xEF\xBF\xBD\""));
}

TEST(Metrics, SeriesAreBoundedAndTheRestIsCountedAsOther) {
  Metrics metrics;
  for (size_t i = 0; i < Metrics::kMaxSeries + 5; ++i) {
    metrics.Count(MetricId::kErrors, {std::to_string(i)});
  }
  std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("terrace_errors_total{code=\"other\"} 5\n"));
  metrics.Count(MetricId::kErrors, {"0"});
  EXPECT_THAT(metrics.Render(), HasSubstr("terrace_errors_total{code=\"0\"} 2\n"));
}

TEST(Metrics, CountsFromManyThreadsAddUp) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) metrics.Count(MetricId::kSwaps, {"m"});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(metrics.Render(), HasSubstr("terrace_swaps_total{model=\"m\"} 4000\n"));
}

}  // namespace
}  // namespace terrace
