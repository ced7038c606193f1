#include "parallel/communicator.h"

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::parallel {
namespace {

std::span<float> Run(std::span<float> values, const IndexRange& range) {
  return values.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

}  // namespace

absl::Status Communicator::Swap(int32_t to, std::span<const float> send, int32_t from,
                                std::span<float> receive) {
  RETURN_IF_ERROR(Exchange(to, std::as_bytes(send), from, std::as_writable_bytes(receive), false));
  sent_bytes_.fetch_add(send.size_bytes(), std::memory_order_relaxed);
  received_bytes_.fetch_add(receive.size_bytes(), std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status Communicator::AllReduce(std::span<float> values) {
  const int32_t count = size(), me = rank();
  reduces_.fetch_add(1, std::memory_order_relaxed);
  if (count == 1) return absl::OkStatus();
  std::vector<IndexRange> parts;
  const auto total = static_cast<int64_t>(values.size());
  for (int32_t r = 0; r < count; ++r) parts.push_back(DividedRange(total, 1, r, count));
  const std::span<float> mine = Run(values, parts[static_cast<size_t>(me)]);
  received_.resize(mine.size() * static_cast<size_t>(count));
  auto piece = [&](int32_t r) {
    return std::span(received_).subspan(mine.size() * static_cast<size_t>(r), mine.size());
  };
  for (int32_t step = 1; step < count; ++step) {
    const int32_t to = (me + step) % count, from = (me + count - step) % count;
    RETURN_IF_ERROR(Swap(to, Run(values, parts[static_cast<size_t>(to)]), from, piece(from)));
  }
  std::copy(mine.begin(), mine.end(), piece(me).begin());
  std::copy(piece(0).begin(), piece(0).end(), mine.begin());
  for (int32_t r = 1; r < count; ++r) {
    const std::span<const float> more = piece(r);
    for (size_t i = 0; i < mine.size(); ++i) mine[i] += more[i];
  }
  return GatherParts(values, parts);
}

absl::Status Communicator::AllReduceOnDevice(float* values, uint64_t count) {
  RETURN_IF_ERROR(device_sums_->AllReduce(values, count));
  // What AllReduce sends, which no library can do with less.
  const auto others = static_cast<uint64_t>(size() - 1);
  const auto mine =
      static_cast<uint64_t>(DividedRange(static_cast<int64_t>(count), 1, rank(), size()).size());
  const uint64_t bytes = (count - mine + others * mine) * sizeof(float);
  reduces_.fetch_add(1, std::memory_order_relaxed);
  sent_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  received_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status Communicator::AllGather(std::span<float> values, std::span<const IndexRange> parts) {
  bool fit = parts.size() == static_cast<size_t>(size());
  for (const IndexRange& part : parts) {
    fit = fit && part.begin >= 0 && part.begin <= part.end &&
          part.end <= static_cast<int64_t>(values.size());
  }
  if (!fit) {
    return absl::InvalidArgumentError(fmt::format("{} parts of {} values do not fit a group of {}",
                                                  parts.size(), values.size(), size()));
  }
  gathers_.fetch_add(1, std::memory_order_relaxed);
  return GatherParts(values, parts);
}

absl::Status Communicator::GatherParts(std::span<float> values, std::span<const IndexRange> parts) {
  const int32_t count = size(), me = rank();
  const std::span<const float> mine = Run(values, parts[static_cast<size_t>(me)]);
  for (int32_t step = 1; step < count; ++step) {
    const int32_t to = (me + step) % count, from = (me + count - step) % count;
    RETURN_IF_ERROR(Swap(to, mine, from, Run(values, parts[static_cast<size_t>(from)])));
  }
  return absl::OkStatus();
}

absl::Status Communicator::Broadcast(int32_t from, std::span<std::byte> bytes) {
  if (rank() != from) return Exchange(kNobody, {}, from, bytes, /*endless=*/true);
  for (int32_t to = 0; to < size(); ++to) {
    if (to == from) continue;
    RETURN_IF_ERROR(Exchange(to, bytes, kNobody, {}, /*endless=*/false));
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> Communicator::FirstToRefuse(bool refuse) {
  const int32_t count = size(), me = rank();
  const std::byte mine{refuse};
  int32_t first = refuse ? me : kNobody;
  for (int32_t step = 1; step < count; ++step) {
    const int32_t from = (me + count - step) % count;
    std::byte theirs{};
    RETURN_IF_ERROR(Exchange((me + step) % count, {&mine, 1}, from, {&theirs, 1}, false));
    if (theirs != std::byte{} && (first == kNobody || from < first)) first = from;
  }
  return first;
}

absl::Status Communicator::Barrier() {
  const int32_t count = size(), me = rank();
  for (int32_t step = 1; step < count; step *= 2) {
    RETURN_IF_ERROR(Exchange((me + step) % count, {}, (me + count - step) % count, {}, false));
  }
  return absl::OkStatus();
}

Traffic Communicator::traffic() const {
  return {sent_bytes_.load(std::memory_order_relaxed),
          received_bytes_.load(std::memory_order_relaxed), reduces_.load(std::memory_order_relaxed),
          gathers_.load(std::memory_order_relaxed)};
}

}  // namespace terrace::parallel
