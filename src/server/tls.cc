#include "server/tls.h"

#include <fmt/format.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "obs/log.h"

namespace terrace::server {
namespace {

namespace ssl = boost::asio::ssl;
constexpr int64_t kLookAgainUs = 1'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(std::string certificate, std::string key,
                                                         const Clock* clock, Logger* log) {
  std::unique_ptr<TlsFiles> files(new TlsFiles(std::move(certificate), std::move(key), clock, log));
  absl::MutexLock lock(&files->mutex_);
  files->stamp_ = files->Stamp();
  files->looked_us_ = clock->NowUs();
  ASSIGN_OR_RETURN(files->context_, files->Read());
  return files;
}

absl::StatusOr<std::shared_ptr<ssl::context>> TlsFiles::Read() const {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  boost::system::error_code ec;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 |
                       ssl::context::no_tlsv1_1 | ssl::context::no_compression);
  context->use_certificate_chain_file(certificate_, ec);
  if (ec) {
    return absl::InvalidArgumentError(
        fmt::format("tls.certificate: {} cannot be used: {}", certificate_, ec.message()));
  }
  context->use_private_key_file(key_, ssl::context::pem, ec);
  if (ec || SSL_CTX_check_private_key(context->native_handle()) != 1) {
    return absl::InvalidArgumentError(
        fmt::format("tls.key: {} cannot be used: {}", key_,
                    ec ? ec.message() : std::string("it does not belong to the certificate")));
  }
  return context;
}

std::string TlsFiles::Stamp() const {
  std::string stamp;
  for (const std::string* path : {&certificate_, &key_}) {
    struct stat info;
    if (stat(path->c_str(), &info) != 0) continue;
    stamp += fmt::format("{}:{}:{}.{};", info.st_ino, info.st_size, info.st_mtim.tv_sec,
                         info.st_mtim.tv_nsec);
  }
  return stamp;
}

std::shared_ptr<ssl::context> TlsFiles::Current() {
  absl::MutexLock lock(&mutex_);
  const int64_t now_us = clock_->NowUs();
  if (now_us - looked_us_ < kLookAgainUs) return context_;
  looked_us_ = now_us;
  std::string stamp = Stamp();
  if (stamp == stamp_) return context_;
  stamp_ = std::move(stamp);
  auto read = Read();
  if (read.ok()) {
    context_ = *std::move(read);
    log_->Info("a new certificate is in use", {{"file", certificate_}});
  } else {
    log_->Error("the certificate from before stays in use", {{"why", Message(read.status())}});
  }
  return context_;
}

}  // namespace terrace::server
