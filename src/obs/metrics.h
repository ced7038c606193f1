// Counters, gauges and histograms in Prometheus form: a thin layer over prometheus-cpp that knows
// only the metrics of obs/metric_table.h. One Metrics is made by the composition root and passed
// to whoever measures; there is no global registry.
//
// Thread-safe, all of it. A handle (Counter, Gauge, Histogram) is a pointer that lives as long as
// its Metrics: take it once where a value changes per token, or use the short forms where it
// changes per request.
#ifndef TERRACE_OBS_METRICS_H_
#define TERRACE_OBS_METRICS_H_

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "absl/synchronization/mutex.h"
#include "obs/metric_table.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace terrace {

// The values of a metric's labels, in the order of its table row.
using LabelValues = std::initializer_list<std::string_view>;

class Counter {
 public:
  Counter(prometheus::Counter* counter, absl::Mutex* raise) : counter_(counter), raise_(raise) {}
  // REQUIRES: `by` >= 0.
  void Add(double by = 1);
  // Raises the counter to `total` if it is below: for totals that somebody else counts and that are
  // copied here when metrics are read. Not to be mixed with Add on the same counter.
  void RaiseTo(double total);

 private:
  prometheus::Counter* counter_;
  absl::Mutex* raise_;  // Makes RaiseTo one step.
};

class Gauge {
 public:
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  void Set(double value);
  void Add(double by);

 private:
  prometheus::Gauge* gauge_;
};

class Histogram {
 public:
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  void Observe(double value);

 private:
  prometheus::Histogram* histogram_;
};

class Metrics {
 public:
  // The most series that one metric may have. Label values beyond it are all counted under
  // "other", so that names sent by clients cannot fill memory.
  static constexpr size_t kMaxSeries = 4096;

  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // REQUIRES: `id` has the type asked for and as many labels as `labels` has values.
  Counter CounterFor(MetricId id, LabelValues labels = {});
  Gauge GaugeFor(MetricId id, LabelValues labels = {});
  Histogram HistogramFor(MetricId id, LabelValues labels = {});

  void Count(MetricId id, LabelValues labels = {}, double by = 1) {
    CounterFor(id, labels).Add(by);
  }
  void Set(MetricId id, LabelValues labels, double value) { GaugeFor(id, labels).Set(value); }
  void Observe(MetricId id, LabelValues labels, double value) {
    HistogramFor(id, labels).Observe(value);
  }

  // Everything in the Prometheus text format (version 0.0.4), for Content-Type kContentType.
  std::string Render() const;
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace

#endif  // TERRACE_OBS_METRICS_H_
