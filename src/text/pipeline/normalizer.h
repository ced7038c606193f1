// Runs the normalising steps of a tokenizer pipeline. Immutable and thread-safe.
#ifndef TERRACE_TEXT_PIPELINE_NORMALIZER_H_
#define TERRACE_TEXT_PIPELINE_NORMALIZER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/byte_level.h"
#include "text/pipeline/character_map.h"
#include "text/pipeline/pipeline.h"
#include "text/text_pattern.h"

namespace terrace {

class Normalizer {
 public:
  // InvalidArgument for a pattern or a character map that cannot be.
  static absl::StatusOr<Normalizer> Create(const std::vector<NormalizerStep>& steps);

  // `text` after all steps; ill-formed bytes go through unchanged (but for kByteLevel, which spells
  // them). InvalidArgument if the steps make more than 2^31 bytes of it; ResourceExhausted if there
  // is no memory for matching.
  absl::StatusOr<std::string> Apply(std::string_view text, EncodeStats* stats) const;

  bool empty() const { return steps_.empty(); }
  size_t bytes() const;

 private:
  struct Step {
    NormalizerStep spec;
    std::optional<TextPattern> pattern;
    std::optional<CharacterMap> map;
  };
  Normalizer() = default;
  absl::StatusOr<std::string> ApplyStep(const Step& step, std::string text,
                                        EncodeStats* stats) const;

  std::vector<Step> steps_;
  ByteLevelAlphabet alphabet_;
};

}  // namespace terrace

#endif  // TERRACE_TEXT_PIPELINE_NORMALIZER_H_
