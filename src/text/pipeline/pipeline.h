// A tokenizer as tokenizer.json describes it: steps that normalise text, steps that cut it into
// pieces, a model that turns pieces into tokens, and what stands around the result. Plain data:
// text/tokenizer_json.h reads it, text/pipeline/ runs it.
#ifndef TERRACE_TEXT_PIPELINE_PIPELINE_H_
#define TERRACE_TEXT_PIPELINE_PIPELINE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace terrace {

struct NormalizerStep {
  enum class Kind : uint8_t {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,    // removes combining marks
    kStrip,           // white space at the ends
    kPrepend,         // `content` before text that is not empty
    kReplaceText,     // each `pattern` by `content`
    kReplacePattern,  // each match of the regular expression `pattern` by `content`
    kBert,
    kByteLevel,    // bytes as characters of GPT-2's alphabet
    kPrecompiled,  // SentencePiece's map of characters, in `pattern`
  };
  Kind kind = Kind::kNfc;
  std::string pattern, content;
  bool left = true, right = true;  // kStrip
  // kBert
  bool clean = true, chinese = true, accents = true, lowercase = true;
};

struct SplitStep {
  enum class Kind : uint8_t {
    kText,         // at each `pattern`
    kPattern,      // at each match of the regular expression `pattern`
    kSpace,        // at each white-space character
    kDigits,       // at each character that is a number; `individually` or in runs
    kPunctuation,  // at each punctuation character
    kBert,         // at white space, which goes, and around each punctuation character
    kMetaspace,    // spaces become `pattern`, which is put first too; cut before each
    kByteLevel,    // GPT-2's pattern, then bytes as characters of its alphabet
    kLength,       // every `length` characters
  };
  // What becomes of a match.
  enum class Behavior : uint8_t { kRemoved, kIsolated, kWithPrevious, kWithNext, kContiguous };
  enum class Prefix : uint8_t { kAlways, kFirst, kNever };
  Kind kind = Kind::kPattern;
  std::string pattern;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;             // matches and what lies between change places
  Prefix prefix = Prefix::kNever;  // kMetaspace, kByteLevel (always or never)
  bool cut = true;                 // kMetaspace, kByteLevel: whether it splits at all
  int32_t length = 0;              // kLength
};

struct TokenizerPipeline {
  enum class Model : uint8_t { kBpe, kUnigram, kWordPiece, kWordLevel };
  enum class Decode : uint8_t {
    kByteLevel,     // GPT-2's alphabet stands for bytes
    kVisibleSpace,  // U+2581 stands for a space
    kWordPiece,     // pieces without the continuing prefix begin with a space
    kSuffix,        // the word's suffix stands for a space
    kPlain,
  };
  std::vector<NormalizerStep> normalizers;
  std::vector<SplitStep> splits;
  Model model = Model::kBpe;
  bool byte_fallback = false;           // a character without a token becomes its bytes' tokens
  bool fuse_unknown = false;            // neighbouring unknown characters become one token
  bool ignore_merges = false;           // a piece that is a token is taken as it is
  std::string continuing_prefix;        // of pieces that do not begin a word
  std::string word_suffix;              // of pieces that end a word
  int32_t max_word_chars = 100;         // longer words are unknown (kWordPiece)
  std::vector<double> scores;           // kUnigram: log probabilities, one a token
  std::vector<int32_t> prefix, suffix;  // tokens that add_special puts around the text
  Decode decode = Decode::kPlain;
  bool strip_space = false;  // decoding drops the space before the first token
  // Added tokens that are looked for in normalised text (the rest in the text as it is).
  std::vector<int32_t> normalized_added;
};

}  // namespace terrace

#endif  // TERRACE_TEXT_PIPELINE_PIPELINE_H_
