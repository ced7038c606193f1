#include "obs/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cassert>
#include <map>
#include <set>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/text.h"

namespace terrace {

struct Metrics::State {
  using Labels = std::map<std::string, std::string>;

  prometheus::Registry registry;
  // By MetricId; in each row exactly the family of the metric's type is set.
  struct Family {
    prometheus::Family<prometheus::Counter>* counter = nullptr;
    prometheus::Family<prometheus::Gauge>* gauge = nullptr;
    prometheus::Family<prometheus::Histogram>* histogram = nullptr;
  };
  std::vector<Family> families;

  absl::Mutex raise;
  absl::Mutex mutex;
  std::vector<std::set<Labels>> series ABSL_GUARDED_BY(mutex);

  // The labels under which to count, with their names.
  Labels Name(MetricId id, LabelValues values) {
    const MetricInfo& info = DescribeMetric(id);
    assert(values.size() == info.labels.size());
    Labels labels;
    size_t i = 0;
    for (std::string_view value : values) {
      labels[std::string(info.labels[i++])] = ToValidUtf8(value);
    }
    if (labels.empty()) return labels;
    absl::MutexLock lock(&mutex);
    std::set<Labels>& known = series[static_cast<size_t>(id)];
    if (known.contains(labels)) return labels;
    if (known.size() < kMaxSeries) {
      known.insert(labels);
    } else {
      for (auto& [name, value] : labels) value = "other";
    }
    return labels;
  }
};

Metrics::Metrics() : state_(std::make_unique<State>()) {
  for (const MetricInfo& info : MetricTable()) {
    State::Family family;
    std::string name(info.name), help(info.help);
    switch (info.type) {
      case MetricType::kCounter:
        family.counter =
            &prometheus::BuildCounter().Name(name).Help(help).Register(state_->registry);
        break;
      case MetricType::kGauge:
        family.gauge = &prometheus::BuildGauge().Name(name).Help(help).Register(state_->registry);
        break;
      case MetricType::kHistogram:
        family.histogram =
            &prometheus::BuildHistogram().Name(name).Help(help).Register(state_->registry);
        break;
    }
    state_->families.push_back(family);
  }
  absl::MutexLock lock(&state_->mutex);
  state_->series.resize(MetricTable().size());
}

Metrics::~Metrics() = default;

Counter Metrics::CounterFor(MetricId id, LabelValues labels) {
  auto* family = state_->families[static_cast<size_t>(id)].counter;
  assert(family != nullptr);
  return Counter(&family->Add(state_->Name(id, labels)), &state_->raise);
}

Gauge Metrics::GaugeFor(MetricId id, LabelValues labels) {
  auto* family = state_->families[static_cast<size_t>(id)].gauge;
  assert(family != nullptr);
  return Gauge(&family->Add(state_->Name(id, labels)));
}

Histogram Metrics::HistogramFor(MetricId id, LabelValues labels) {
  auto* family = state_->families[static_cast<size_t>(id)].histogram;
  assert(family != nullptr);
  std::span<const double> buckets = DescribeMetric(id).buckets;
  return Histogram(&family->Add(state_->Name(id, labels), prometheus::Histogram::BucketBoundaries(
                                                              buckets.begin(), buckets.end())));
}

std::string Metrics::Render() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

void Counter::Add(double by) { counter_->Increment(by); }
void Counter::RaiseTo(double total) {
  absl::MutexLock lock(raise_);
  if (double value = counter_->Value(); value < total) counter_->Increment(total - value);
}
void Gauge::Set(double value) { gauge_->Set(value); }
void Gauge::Add(double by) { gauge_->Increment(by); }
void Histogram::Observe(double value) { histogram_->Observe(value); }

}  // namespace terrace
