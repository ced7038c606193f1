#include "engine/group_message.h"

#include <cstring>
#include <type_traits>

namespace terrace::engine {
namespace {

// Walks a message's fields in one order for both directions.
class Writer {
 public:
  template <typename T>
  void Value(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof value);
  }
  template <typename Items>
  void Many(Items& items) {
    uint64_t count = items.size();
    Value(count);
    const auto from = std::as_bytes(std::span(items.data(), items.size()));
    bytes_.insert(bytes_.end(), from.begin(), from.end());
  }
  uint64_t Count(uint64_t count) {
    Value(count);
    return count;
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  void Value(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (Short(sizeof value)) return;
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_ = bytes_.subspan(sizeof value);
  }
  template <typename Items>
  void Many(Items& items) {
    constexpr size_t kItem = sizeof(typename Items::value_type);
    const uint64_t count = Count(0);
    if (count > bytes_.size() / kItem) good_ = false;
    if (!good_) return;
    items.resize(count);
    if (count > 0) std::memcpy(items.data(), bytes_.data(), count * kItem);
    bytes_ = bytes_.subspan(count * kItem);
  }
  // Of things that each take a byte at least.
  uint64_t Count(uint64_t) {
    uint64_t count = 0;
    Value(count);
    if (count > bytes_.size()) good_ = false;
    return good_ ? count : 0;
  }
  bool whole() const { return good_ && bytes_.empty(); }

 private:
  bool Short(size_t bytes) {
    if (bytes > bytes_.size()) good_ = false;
    return !good_;
  }
  std::span<const std::byte> bytes_;
  bool good_ = true;
};

template <typename Walker>
void Walk(Walker& walker, GroupMessage& message) {
  walker.Value(message.kind);
  walker.Many(message.closed);
  walker.Many(message.freed);
  if (message.kind == GroupMessage::Kind::kOpen) {
    GroupModel& model = message.model;
    walker.Value(model.id);
    walker.Many(model.name);
    walker.Many(model.path);
    walker.Value(model.max_context);
    walker.Value(model.kv_dtype);
    walker.Value(model.tensor);
    walker.Value(model.experts);
  }
  if (message.kind != GroupMessage::Kind::kPass) return;
  GroupPass& pass = message.pass;
  walker.Value(pass.model);
  walker.Many(pass.tokens);
  walker.Many(pass.positions);
  walker.Many(pass.logit_rows);
  walker.Value(pass.uniform);
  pass.sequences.resize(walker.Count(pass.sequences.size()));
  for (GroupPass::Sequence& sequence : pass.sequences) {
    walker.Value(sequence.first_row);
    walker.Value(sequence.rows);
    walker.Value(sequence.start);
    walker.Many(sequence.blocks);
  }
}

}  // namespace

std::vector<std::byte> Serialize(const GroupMessage& message) {
  Writer writer;
  Walk(writer, const_cast<GroupMessage&>(message));  // only read
  return writer.Take();
}

absl::StatusOr<GroupMessage> ParseGroupMessage(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  GroupMessage message;
  Walk(reader, message);
  if (!reader.whole() || message.kind > GroupMessage::Kind::kNews) {
    return absl::DataLossError("what came from the group's leader is no message");
  }
  return message;
}

}  // namespace terrace::engine
