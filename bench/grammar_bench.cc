// What following a grammar costs a token: the mask over a vocabulary of 131,072 tokens and setting
// the logits of the others, for a JSON schema of 2 KB. `first`: a schema not seen before, from the
// moment that it is compiled; `then`: the same schema again.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/json/parse.hpp>

#include "base/random.h"
#include "base/status.h"
#include "bench.h"
#include "text/byte_level.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/matcher.h"
#include "text/tokenizer.h"

namespace terrace::bench {
namespace {

constexpr size_t kVocab = 131'072;

// Bytes, what JSON is written with, and words of syllables with and without a blank before them.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeVocabulary() {
  const ByteLevelAlphabet alphabet;
  Random random(1);
  TokenizerConfig config;
  config.model = "gpt2";
  config.pre = "qwen2";
  auto add = [&](std::string_view bytes) {
    std::string spelling;
    for (char c : bytes) spelling += alphabet.Spelling(static_cast<uint8_t>(c));
    config.tokens.push_back(std::move(spelling));
    config.types.push_back(static_cast<int32_t>(TokenType::kNormal));
  };
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    add({&c, 1});
  }
  for (std::string_view text :
       {"\",",    "\": ", "\": \"", "\", \"", "{\"",  "\"}", "},",    "}}",
        "]}",     "[\"",  "\"]",    "],",     ", ",   ": ",  "\",\n", "\n  ",
        "\n    ", "true", "false",  "null",   ".\",", "!\"", "\\n",   "\\\""}) {
    add(text);
  }
  for (int number = 0; number < 1000; ++number) add(fmt::format("{}", number));
  constexpr std::string_view kLetters = "etaoinshrdlcumwfgypbvkjxqz";
  std::vector<std::string> words;
  while (words.size() + config.tokens.size() < kVocab + kVocab / 8) {
    std::string word = random.Below(2) == 0 ? " " : "";
    for (uint64_t n = 2 + random.Below(7); n > 0; --n) {
      const uint64_t letter = std::min(random.Below(26), random.Below(26));
      word += kLetters[letter];
    }
    if (random.Below(12) == 0) word += "\"";
    if (random.Below(12) == 0) word += std::string(1 + random.Below(2), '.');
    words.push_back(std::move(word));
  }
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  for (const std::string& word : words) {
    if (config.tokens.size() < kVocab) add(word);
  }
  config.merge_pairs = {{"a", "b"}};
  return Tokenizer::Create(std::move(config));
}

// About 2 KB: nested objects of strings, numbers, dates, lists and choices. `number` makes each
// differ from the others.
std::string Schema(int number) {
  std::string properties, required;
  for (int i = 0; i < 22; ++i) {
    static constexpr std::string_view kTypes[] = {
        R"({"type":"string","description":"what it is called"})",
        R"({"type":"integer","minimum":0,"maximum":100000})",
        R"({"type":"array","items":{"type":"string"},"maxItems":8})",
        R"({"enum":["low","medium","high"]})",
        R"({"type":"object","properties":{"x":{"type":"number"},"note":{"type":"string"}},)"
        R"("required":["x","note"],"additionalProperties":false})",
        R"({"anyOf":[{"type":"string","format":"date"},{"type":"null"}]})"};
    properties += fmt::format("{}\"field_{}_{}\":{}", i == 0 ? "" : ",", number, i, kTypes[i % 6]);
    if (i % 4 != 3) required += fmt::format("{}\"field_{}_{}\"", i == 0 ? "" : ",", number, i);
  }
  return fmt::format(
      R"({{"type":"object","properties":{{"items":{{"type":"array","items":{{"type":"object",)"
      R"("properties":{{{}}},"required":[{}],"additionalProperties":false}}}}}},)"
      R"("required":["items"]}})",
      properties, required);
}

struct Cost {
  std::vector<double> us;  // of each token
  size_t complete = 0;
};

// Writes one text: what ends strings and lists is taken in a third of all steps where it may come.
void WriteText(const Context& context, std::shared_ptr<const grammar::CompiledGrammar> compiled,
               const std::vector<int32_t>& structure, Random* random, Cost* cost) {
  grammar::Matcher matcher(compiled);
  std::vector<float> logits(kVocab, 1.0f);
  for (int step = 0; step < 400; ++step) {
    std::fill(logits.begin(), logits.end(), 1.0f);
    const int64_t start = context.clock->NowUs();
    grammar::ForbidOthers(matcher.Allowed(), logits);
    cost->us.push_back(static_cast<double>(context.clock->NowUs() - start));
    if (matcher.can_end()) {
      ++cost->complete;
      return;
    }
    int32_t token = -1;
    if (random->Below(3) == 0) {
      for (int32_t each : structure) {
        if (logits[static_cast<size_t>(each)] > 0) token = each;
      }
    }
    for (uint64_t at = random->Below(kVocab); token < 0; at = (at + 1) % kVocab) {
      if (logits[at] > 0) token = static_cast<int32_t>(at);
    }
    matcher.Accept(token);
  }
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}
double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

absl::StatusOr<std::vector<Row>> RunGrammar(const Context& context) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, MakeVocabulary());
  std::vector<int32_t> structure;
  for (std::string_view text : {"\"", "\",", "]", "}", "1", "\"]", "\"}"}) {
    if (const auto id = tokenizer->Find(text)) structure.push_back(*id);
  }
  grammar::GrammarCache cache(tokenizer.get());
  Random random(2);
  const int schemas = context.quick ? 2 : 8;
  Cost first, then;
  std::vector<double> compile_ms;
  for (int number = 0; number < schemas; ++number) {
    const std::string text = Schema(number);
    context.say(fmt::format("schema {} of {} bytes", number, text.size()));
    const auto schema = boost::json::parse(text);
    const int64_t start = context.clock->NowUs();
    ASSIGN_OR_RETURN(const auto compiled,
                     cache.Get(text, [&] { return grammar::JsonSchemaGrammar(schema); }));
    compile_ms.push_back(static_cast<double>(context.clock->NowUs() - start) * 1e-3);
    WriteText(context, compiled, structure, &random, &first);
    for (int i = 0; i < 4; ++i) WriteText(context, compiled, structure, &random, &then);
  }
  // The first schema pays for the vocabulary's tree and for strings, which all share.
  const double first_compile = compile_ms[0];
  compile_ms.erase(compile_ms.begin());
  std::vector<Row> rows;
  auto row = [&](std::string law, double value, std::string unit, std::optional<double> goal) {
    Row each{.law = std::move(law), .measured = value, .unit = std::move(unit)};
    if (goal) {
      each.goal_kind = Goal::kAtMost;
      each.goal = *goal;
    }
    rows.push_back(std::move(each));
  };
  row("constraint mask a token, schema of 2 KB seen first, mean", Mean(first.us), "us", 50);
  row("constraint mask a token, schema of 2 KB, mean", Mean(then.us), "us", 50);
  row("constraint mask a token, schema of 2 KB, p99", Percentile(then.us, 0.99), "us", {});
  row("compiling a model's first schema of 2 KB", first_compile, "ms", {});
  row("compiling a further schema of 2 KB, median", Median(compile_ms), "ms", {});
  return rows;
}

}  // namespace terrace::bench
