// A real S3 server for tests, Ceph's RADOS Gateway, by scripts/ceph_gateway.py.
#ifndef TERRACE_STORAGE_CEPH_GATEWAY_TESTING_H_
#define TERRACE_STORAGE_CEPH_GATEWAY_TESTING_H_

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/text.h"
#include "storage/object/s3_store.h"

namespace terrace::storage {

class CephGateway {
 public:
  // False where its programs are not installed.
  static bool Installed() {
    for (const char* name : {"radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd"}) {
      if (access((std::string("/usr/bin/") + name).c_str(), X_OK) != 0) return false;
    }
    return true;
  }

  // Takes some seconds. Without success error() says why.
  CephGateway() {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    std::string program = "python3", script = TERRACE_SOURCE_DIR "/scripts/ceph_gateway.py";
    char* arguments[] = {program.data(), script.data(), nullptr};
    if (posix_spawnp(&pid_, "python3", &actions, nullptr, arguments, environ) != 0) pid_ = 0;
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    commands_ = fdopen(to[1], "w");
    answers_ = fdopen(from[0], "r");
    first_ = Answer();
  }
  ~CephGateway() {
    if (commands_ != nullptr) fclose(commands_);  // it stops what it started, and ends
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    if (answers_ != nullptr) fclose(answers_);
  }
  CephGateway(const CephGateway&) = delete;
  CephGateway& operator=(const CephGateway&) = delete;

  bool running() const { return first_.size() == 6; }
  const std::string& error() const { return error_; }
  const std::string& endpoint() const { return first_[0]; }
  AwsCredentials credentials() const { return {first_[1], first_[2], ""}; }
  const std::string& version() const { return first_[3]; }
  const std::string& tls_endpoint() const { return first_[4]; }
  const std::string& certificate() const { return first_[5]; }  // of localhost and models.localhost

  // The words that the script's commands answer with; empty with error() set if it refused, and
  // {""} for those that answer with none.
  std::vector<std::string> Do(const std::vector<std::string>& words) {
    for (const std::string& word : words) fprintf(commands_, "%s ", UriEncode(word, true).c_str());
    fputc('\n', commands_);
    fflush(commands_);
    return Answer();
  }

 private:
  std::vector<std::string> Answer() {
    std::string line;
    for (int c = 0; (c = fgetc(answers_)) != EOF && c != '\n';) line += static_cast<char>(c);
    std::vector<std::string> words;
    for (std::string_view word : Split(line, ' ')) words.push_back(Decoded(word));
    error_ = words[0] == "ok" ? "" : words.size() > 1 ? words[1] : "it ended without an answer";
    if (!error_.empty()) return {};
    words.erase(words.begin());
    if (words.empty()) words.emplace_back();
    return words;
  }
  static std::string Decoded(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '%') {
        out += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
        i += 2;
      } else {
        out += text[i];
      }
    }
    return out;
  }

  pid_t pid_ = 0;
  FILE* commands_ = nullptr;
  FILE* answers_ = nullptr;
  std::vector<std::string> first_;
  std::string error_;
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_CEPH_GATEWAY_TESTING_H_
