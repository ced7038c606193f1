#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"

namespace terrace {
namespace {

struct Outcome {
  std::string text;
  int matched;
  bool operator==(const Outcome&) const = default;
};

Outcome Stream(const std::vector<std::string>& stops, std::string_view text,
               const std::vector<size_t>& cuts) {
  StopMatcher matcher(stops);
  std::string out;
  size_t at = 0;
  for (size_t cut : cuts) {
    out += matcher.Append(text.substr(at, cut));
    at = std::min(text.size(), at + cut);
  }
  out += matcher.Append(text.substr(at));
  out += matcher.Finish();
  return {out, matcher.matched()};
}

// By definition: the stop that ends first, the longest of those.
Outcome Reference(const std::vector<std::string>& stops, std::string_view text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t s = 0; s < stops.size(); ++s) {
      if (stops[s].empty() || !text.substr(0, end).ends_with(stops[s])) continue;
      if (best < 0 || stops[s].size() > stops[best].size()) best = static_cast<int>(s);
    }
    if (best >= 0) return {std::string(text.substr(0, end - stops[best].size())), best};
  }
  return {std::string(text), -1};
}

// A28, with the texts of the report: words are the tokens.
TEST(StopMatcherTest, StopsOverTokensAreFoundAndNothingIsLostOrRepeated) {
  const std::string text = "A B C O P X O P Q R";
  const std::vector<size_t> words(10, 2);
  EXPECT_EQ(Stream({"O P Q"}, text, words), (Outcome{"A B C O P X ", 0}));
  EXPECT_EQ(Stream({"O P Q", "C O Z"}, text, words), (Outcome{"A B C O P X ", 0}));
  EXPECT_EQ(Stream({"X"}, text, words), (Outcome{"A B C O P ", 0}));
  EXPECT_EQ(Stream({"P X"}, text, {3, 7, 4}), (Outcome{"A B C O ", 0}));
  EXPECT_EQ(Stream({"absent"}, text, words), (Outcome{text, -1}));
  EXPECT_EQ(Stream({}, text, words), (Outcome{text, -1}));
  EXPECT_EQ(Stream({""}, text, words), (Outcome{text, -1}));
}

TEST(StopMatcherTest, OnlyWhatMayBecomeAStopIsHeldBack) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Append("the E"), "the ");
  EXPECT_EQ(matcher.Append("N"), "");
  EXPECT_EQ(matcher.Append("E"), "EN");
  EXPECT_EQ(matcher.Append("xt"), "Ext");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Append("EN"), "");
  EXPECT_EQ(matcher.Append("D of it"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.Append("more"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcherTest, WhatIsHeldAtTheEndIsGiven) {
  StopMatcher matcher({"</s>"});
  EXPECT_EQ(matcher.Append("a</s"), "a");
  EXPECT_EQ(matcher.Finish(), "</s");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcherTest, AZeroByteIsAByte) {
  using std::string_literals::operator""s;
  EXPECT_EQ(Stream({"\0b"s}, "a\0a\0b"s, {1, 1, 1}), (Outcome{"a\0a"s, 0}));
}

TEST(StopMatcherTest, CutsNeverChangeTheOutcome) {
  const uint64_t seed = 4711;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  auto word = [&](uint64_t longest) {
    std::string text;
    for (uint64_t n = random.Below(longest); n > 0; --n) {
      text.push_back(static_cast<char>('a' + random.Below(2)));
    }
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (uint64_t n = random.Below(4); n > 0; --n) stops.push_back(word(7));
    const std::string text = word(40);
    std::vector<size_t> cuts;
    for (uint64_t n = random.Below(20); n > 0; --n) cuts.push_back(random.Below(5));
    EXPECT_EQ(Stream(stops, text, cuts), Reference(stops, text)) << text;
  }
}

}  // namespace
}  // namespace terrace
