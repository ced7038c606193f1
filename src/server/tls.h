// The server's certificate and key, read again when their files change, so that a renewed
// certificate is used without a restart. Thread-safe.
#ifndef TERRACE_SERVER_TLS_H_
#define TERRACE_SERVER_TLS_H_

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace terrace {
class Clock;
class Logger;
}  // namespace terrace

namespace terrace::server {

class TlsFiles {
 public:
  // Reads PEM files. InvalidArgument if one cannot be read or they do not belong together. `clock`
  // and `log` must outlive the result.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Open(std::string certificate, std::string key,
                                                        const Clock* clock, Logger* log);

  // For a new connection; shared with it, since a later one may get a newer certificate. Looks at
  // the files once a second at most; if they cannot be used, those from before stay.
  std::shared_ptr<boost::asio::ssl::context> Current();

 private:
  TlsFiles(std::string certificate, std::string key, const Clock* clock, Logger* log)
      : certificate_(std::move(certificate)), key_(std::move(key)), clock_(clock), log_(log) {}
  absl::StatusOr<std::shared_ptr<boost::asio::ssl::context>> Read() const;
  std::string Stamp() const;

  const std::string certificate_;
  const std::string key_;
  const Clock* const clock_;
  Logger* const log_;
  absl::Mutex mutex_;
  std::shared_ptr<boost::asio::ssl::context> context_ ABSL_GUARDED_BY(mutex_);
  std::string stamp_ ABSL_GUARDED_BY(mutex_);
  int64_t looked_us_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_TLS_H_
