// What the leader of a group tells the other members: which models to open, and which pass to
// compute next. Bytes in host order: all members run the same program.
#ifndef TERRACE_ENGINE_GROUP_MESSAGE_H_
#define TERRACE_ENGINE_GROUP_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/types.h"

namespace terrace::engine {

// A model that the members are to open, each its share of it.
struct GroupModel {
  uint32_t id = 0;  // given by the leader
  std::string name;
  std::string path;
  int32_t max_context = 0;
  ops::KvDType kv_dtype = ops::KvDType::kF16;
  bool tensor = false;  // as in model::Share
  bool experts = false;
};

// The rows of a pass. KV blocks are called by their addresses at the leader; 0: let go by a window.
struct GroupPass {
  uint32_t model = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> logit_rows;
  bool uniform = false;
  struct Sequence {
    int32_t first_row = 0;
    int32_t rows = 0;
    int32_t start = 0;
    std::vector<uint64_t> blocks;
  };
  std::vector<Sequence> sequences;
};

struct GroupMessage {
  // kNews: nothing beside what is closed and freed.
  enum class Kind : uint8_t { kStop, kOpen, kPass, kNews } kind = Kind::kStop;
  std::vector<uint32_t> closed;  // models that will not be used again
  std::vector<uint64_t> freed;   // KV blocks whose content is not wanted any more
  GroupModel model;              // kOpen
  GroupPass pass;                // kPass
};

std::vector<std::byte> Serialize(const GroupMessage& message);
// DataLoss for bytes that are no message.
absl::StatusOr<GroupMessage> ParseGroupMessage(std::span<const std::byte> bytes);

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_GROUP_MESSAGE_H_
