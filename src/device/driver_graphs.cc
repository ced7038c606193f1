#include "device/driver_graphs.h"

#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "base/status.h"

namespace terrace::device {
namespace {

constexpr size_t kShapeWords = 3;  // two numbers a word
constexpr size_t kHeadWords = 2 + kShapeWords;

}  // namespace

void LaunchRun::Add(void* function, const LaunchShape& shape, const std::vector<uint64_t>& values) {
  words_.push_back(reinterpret_cast<uintptr_t>(function));
  for (size_t i = 0; i < kShapeWords; ++i) {
    words_.push_back(uint64_t{shape.groups[i]} << 32 | shape.items[i]);
  }
  words_.push_back(values.size());
  words_.insert(words_.end(), values.begin(), values.end());
  ++launches_;
}

absl::Status LaunchRun::Launch(const DriverApi& api, void* stream) {
  std::vector<void*> parameters;
  for (size_t at = 0; at < words_.size();) {
    LaunchShape shape;
    for (size_t i = 0; i < kShapeWords; ++i) {
      shape.groups[i] = static_cast<uint32_t>(words_[at + 1 + i] >> 32);
      shape.items[i] = static_cast<uint32_t>(words_[at + 1 + i]);
    }
    const uint64_t count = words_[at + kHeadWords - 1];
    parameters.clear();
    for (uint64_t i = 0; i < count; ++i) parameters.push_back(&words_[at + kHeadWords + i]);
    RETURN_IF_ERROR(
        api.Launch(reinterpret_cast<void*>(words_[at]), shape, parameters.data(), stream));
    at += kHeadWords + count;
  }
  return absl::OkStatus();
}

void LaunchRun::Clear() {
  words_.clear();
  launches_ = 0;
}

LaunchGraphs::LaunchGraphs(const DriverApi* api, std::function<void(const std::string&)> failed,
                           const Limits& limits)
    : api_(api), failed_(std::move(failed)), limits_(limits) {}

LaunchGraphs::~LaunchGraphs() {
  if (!api_->Enter().ok()) return;
  while (!order_.empty()) Forget(order_.begin());
  if (capturing_ != nullptr) api_->DestroyStream(capturing_);
}

absl::Status LaunchGraphs::Launch(LaunchRun& run, void* stream) {
  if (given_up_ || run.launches() < limits_.fewest_launches) return run.Launch(*api_, stream);
  const std::vector<uint64_t>& words = run.words();
  const uint64_t hash = Hash64(words.data(), words.size() * sizeof(uint64_t));
  auto found = by_hash_.find(hash);
  if (found != by_hash_.end() && found->second->words != words) {
    Forget(found->second);
    found = by_hash_.end();
  }
  if (found == by_hash_.end()) {
    order_.push_front({words, nullptr});
    by_hash_[hash] = order_.begin();
    if (order_.size() > limits_.most_runs) Forget(std::prev(order_.end()));
    return run.Launch(*api_, stream);
  }
  order_.splice(order_.begin(), order_, found->second);
  Known& known = *found->second;
  if (known.graph == nullptr) {
    absl::StatusOr<void*> graph = Capture(run);
    if (!graph.ok()) {
      GiveUp(graph.status());
      return run.Launch(*api_, stream);
    }
    known.graph = *graph;
  }
  const absl::Status launched = api_->LaunchGraph(known.graph, stream);
  if (launched.ok()) return launched;
  GiveUp(launched);
  return run.Launch(*api_, stream);
}

absl::StatusOr<void*> LaunchGraphs::Capture(LaunchRun& run) {
  if (capturing_ == nullptr) {
    ASSIGN_OR_RETURN(capturing_, api_->CreateStream());
  }
  RETURN_IF_ERROR(api_->BeginCapture(capturing_));
  const absl::Status launched = run.Launch(*api_, capturing_);
  absl::StatusOr<void*> graph = api_->EndCapture(capturing_);
  if (launched.ok() || !graph.ok()) return launched.ok() ? graph : launched;
  api_->DestroyGraph(*graph);
  return launched;
}

void LaunchGraphs::GiveUp(const absl::Status& why) {
  given_up_ = true;
  if (failed_ != nullptr) {
    failed_(fmt::format("kernels are launched one by one, not as graphs: {}", Message(why)));
  }
}

void LaunchGraphs::Forget(Order::iterator known) {
  const std::vector<uint64_t>& words = known->words;
  by_hash_.erase(Hash64(words.data(), words.size() * sizeof(uint64_t)));
  if (known->graph != nullptr) api_->DestroyGraph(known->graph);
  order_.erase(known);
}

}  // namespace terrace::device
