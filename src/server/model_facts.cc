#include "server/model_facts.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <type_traits>
#include <variant>

#include "base/text.h"
#include "server/json_text.h"

namespace terrace::server {
namespace {

// general.file_type of GGUF: the type of most tensors, by llama.cpp's numbering.
std::string_view FileType(int64_t type) {
  struct Entry {
    int64_t type;
    std::string_view name;
  };
  static constexpr std::array<Entry, 26> kTypes = {{
      {0, "F32"},     {1, "F16"},      {2, "Q4_0"},    {3, "Q4_1"},    {7, "Q8_0"},
      {8, "Q5_0"},    {9, "Q5_1"},     {10, "Q2_K"},   {11, "Q3_K_S"}, {12, "Q3_K_M"},
      {13, "Q3_K_L"}, {14, "Q4_K_S"},  {15, "Q4_K_M"}, {16, "Q5_K_S"}, {17, "Q5_K_M"},
      {18, "Q6_K"},   {19, "IQ2_XXS"}, {20, "IQ2_XS"}, {25, "IQ4_NL"}, {26, "IQ3_S"},
      {27, "IQ3_M"},  {30, "IQ4_XS"},  {32, "BF16"},   {36, "TQ1_0"},  {37, "TQ2_0"},
      {38, "MXFP4"},
  }};
  for (const Entry& entry : kTypes) {
    if (entry.type == type) return entry.name;
  }
  return "";
}

}  // namespace

ModelFacts FactsOf(const Metadata& metadata) {
  ModelFacts facts;
  facts.architecture = metadata.GetString("general.architecture", "").value_or("");
  facts.size_label = metadata.GetString("general.size_label", "").value_or("");
  facts.chat_template = metadata.GetString("tokenizer.chat_template", "").value_or("");
  facts.quantization = FileType(metadata.GetInt("general.file_type", -1, 1 << 20, -1).value_or(-1));
  for (const auto& [key, value] : metadata.values()) {
    std::string text;
    std::visit(
        [&text](const auto& each) {
          using T = std::decay_t<decltype(each)>;
          if constexpr (std::is_same_v<T, std::string>) {
            text = JsonString(ToValidUtf8(each));
          } else if constexpr (std::is_same_v<T, bool>) {
            text = each ? "true" : "false";
          } else if constexpr (std::is_same_v<T, int64_t>) {
            text = fmt::format("{}", each);
          } else if constexpr (std::is_same_v<T, double>) {
            AppendJsonNumber(static_cast<float>(each), &text);
          }
        },
        value);
    const bool own = key == "tokenizer.chat_template";  // has a place of its own
    if (!text.empty() && !own) facts.metadata.emplace_back(ToValidUtf8(key), std::move(text));
  }
  return facts;
}

}  // namespace terrace::server
