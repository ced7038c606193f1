// What a model file says of itself, for listings. Plain data, immutable once published.
#ifndef TERRACE_SERVER_MODEL_FACTS_H_
#define TERRACE_SERVER_MODEL_FACTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/metadata.h"

namespace terrace::server {

struct ModelFacts {
  std::string architecture;
  std::string size_label;    // "135M", as the file says; may be empty
  std::string quantization;  // "Q4_K_M"; empty if the file does not say
  uint64_t weight_bytes = 0;
  std::string fingerprint;  // hex
  std::string chat_template;
  int32_t max_context = 0;
  // The single values of the file's metadata, as JSON text, by key.
  std::vector<std::pair<std::string, std::string>> metadata;
};

ModelFacts FactsOf(const Metadata& metadata);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_MODEL_FACTS_H_
