// Runs the splitting steps of a tokenizer pipeline. Immutable and thread-safe.
#ifndef TERRACE_TEXT_PIPELINE_SPLITTER_H_
#define TERRACE_TEXT_PIPELINE_SPLITTER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/byte_level.h"
#include "text/pipeline/pipeline.h"
#include "text/text_pattern.h"

namespace terrace {

// A text and the pieces of it that are left, in order. What lies in no piece is gone.
struct SplitText {
  std::string text;
  std::vector<TextRange> pieces;
};

class Splitter {
 public:
  // InvalidArgument for a pattern that cannot be.
  static absl::StatusOr<Splitter> Create(const std::vector<SplitStep>& steps);

  // Cuts `text`; `first` says that it stands at the start of the input. An ill-formed byte is a
  // piece of its own (but after kByteLevel, which spells it, where it is in the text's).
  // InvalidArgument if spelling makes more than 2^31 bytes of it; ResourceExhausted if there is no
  // memory for matching.
  absl::StatusOr<SplitText> Split(std::string text, bool first, EncodeStats* stats) const;

  size_t bytes() const;

 private:
  struct Step {
    SplitStep spec;
    std::optional<TextPattern> pattern;
  };
  struct Run;  // of one Split

  Splitter() = default;
  void Apply(const Step& step, Run* run) const;
  // Puts prefixes before pieces and changes their spelling: the text is made anew.
  void Respell(const Step& step, Run* run) const;

  std::vector<Step> steps_;
  ByteLevelAlphabet alphabet_;
};

}  // namespace terrace

#endif  // TERRACE_TEXT_PIPELINE_SPLITTER_H_
