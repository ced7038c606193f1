// Turns text into token ids and ids into bytes, from vocabulary tables as model files carry them.
// Four families: byte-level BPE ("gpt2"), SentencePiece BPE by scores ("llama"), BPE by merges
// over space-escaped text ("gemma4"), and what a tokenizer.json describes ("tokenizer.json").
//
// A Tokenizer is immutable after Create and safe to use from many threads. Everything in a
// TokenizerConfig is taken as hostile and checked; encoding never recurses on its input and takes
// near-linear time (merging is a heap over a linked list, splitting is by patterns that cannot
// backtrack for more than a constant factor).
#ifndef TERRACE_TEXT_TOKENIZER_H_
#define TERRACE_TEXT_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "text/pipeline/pipeline.h"

namespace terrace {

// What a token is, with the numbers model files use.
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // Recognised only where special tokens may be, rendered as nothing.
  kUserDefined = 4,  // Recognised whole in any text.
  kUnused = 5,
  kByte = 6,  // "<0x41>": one raw byte.
};

// The tables of a vocabulary. The comments name the metadata keys below "tokenizer.ggml.".
struct TokenizerConfig {
  std::string model;                // model: "gpt2", "llama", "gemma4" or "tokenizer.json"
  std::string pre;                  // pre: the pre-tokeniser of "gpt2"; empty means "default"
  std::string name;                 // general.name: some families have quirks known by name
  std::vector<std::string> tokens;  // tokens
  std::vector<float> scores;        // scores: needed by "llama"
  std::vector<int32_t> types;       // token_type: empty means that all are normal
  std::vector<std::string> merges;  // merges, as "left right"; or
  std::vector<std::pair<std::string, std::string>>
      merge_pairs;                                      // already split: parts may hold spaces
  std::optional<int64_t> bos, eos, unk, pad, eot, eom;  // *_token_id
  std::optional<bool> add_bos, add_eos;                 // add_bos_token, add_eos_token
  std::optional<bool> add_space_prefix;                 // add_space_prefix
  // Ids of special tokens that swallow the white space before or after them.
  std::vector<int32_t> lstrip, rstrip;
  // Ids of special tokens that are only seen where no letter, digit or underscore touches them.
  std::vector<int32_t> single_word;
  std::vector<int32_t> ends;                  // further tokens that end a text or a turn
  std::optional<TokenizerPipeline> pipeline;  // of "tokenizer.json"
};

// Work done by one Encode, for tests of its growth and for traces.
struct EncodeStats {
  uint64_t merge_steps = 0;      // Candidates taken from merge heaps.
  uint64_t pattern_matches = 0;  // Pre-tokeniser matches.
  uint64_t pattern_limits = 0;   // Matches given up at a limit and replaced by a short cut.
};

struct EncodeOptions {
  // Adds the start (and end) token if the model asks for one, unless the text itself already begins
  // (ends) with it: exactly one, whether or not a chat template wrote it.
  bool add_special = false;
  bool add_end = true;  // With add_special: the end token too, not only the start.
  // Recognises control tokens by their spelling. Without it only user-defined tokens are.
  bool parse_special = false;
  // Longer input is refused with InvalidArgument.
  size_t max_bytes = size_t{16} << 20;
  // If set, work is added to it.
  EncodeStats* stats = nullptr;
};

// A part of a prompt. Text from a template is trusted, text from users and tools is not.
struct TextSpan {
  std::string_view text;
  bool trusted = false;
};

class Tokenizer {
 public:
  // InvalidArgument names the table that is wrong. The config is consumed.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerConfig config);

  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of `text`. NUL and ill-formed UTF-8 are ordinary bytes. Fails only for text over
  // `max_bytes` and for a byte that the vocabulary cannot express in any way.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                                      const EncodeOptions& options) const = 0;

  // The ids of the spans' texts joined. Control tokens are recognised only where the whole spelling
  // lies inside trusted text (of one or more adjacent trusted spans); so are user-defined tokens
  // that are spelled like turn or tool markers or that end a turn. All other text is split and
  // merged across borders as if it were one string. `options.parse_special` is not looked at.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::span<const TextSpan> spans,
                                                      const EncodeOptions& options) const = 0;

  // The raw bytes a token stands for; a part of a character is possible. Control, unknown and
  // unused tokens give nothing, or their spelling with `render_special`. An id out of range gives
  // nothing.
  virtual std::string TokenBytes(int32_t id, bool render_special) const = 0;

  // The id spelled `text` in the vocabulary, of any type.
  virtual std::optional<int32_t> Find(std::string_view text) const = 0;

  virtual int32_t vocab_size() const = 0;
  virtual bool IsControl(int32_t id) const = 0;
  // True for the end-of-text and end-of-turn tokens: eos, eot, eom and those known by spelling.
  virtual bool IsEndOfGeneration(int32_t id) const = 0;
  virtual std::optional<int32_t> bos() const = 0;
  virtual std::optional<int32_t> eos() const = 0;
  virtual std::optional<int32_t> unk() const = 0;
  virtual std::optional<int32_t> pad() const = 0;
  virtual bool add_bos() const = 0;
  virtual bool add_eos() const = 0;
  // True if encoding puts a space before the text ("llama"); see Detokenizer.
  virtual bool add_space_prefix() const = 0;

  // What was odd but usable in the config, one sentence each: for the log of the load.
  virtual const std::vector<std::string>& warnings() const = 0;
  // Memory held, in bytes (an estimate from table sizes).
  virtual size_t bytes() const = 0;

 protected:
  Tokenizer() = default;
};

}  // namespace terrace

#endif  // TERRACE_TEXT_TOKENIZER_H_
