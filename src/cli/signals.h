// Signals as data, for a program that waits for them; and telling the service manager how it is.
#ifndef TERRACE_CLI_SIGNALS_H_
#define TERRACE_CLI_SIGNALS_H_

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <string_view>

namespace terrace::cli {

// A file descriptor that is closed at the end.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// Takes SIGINT, SIGTERM and SIGHUP as data instead of interruptions, for this thread and those it
// starts; gives them back when destroyed.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
    fd_ = signalfd(-1, &set_, SFD_CLOEXEC);
  }
  ~Signals() {
    if (fd_ >= 0) close(fd_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Waits for a signal, or until `other` can be read (then 0).
  int Wait(int other) {
    while (true) {
      pollfd polled[] = {{fd_, POLLIN, 0}, {other, POLLIN, 0}};
      if (poll(polled, 2, -1) < 0) continue;
      if ((polled[1].revents & POLLIN) != 0) return 0;
      signalfd_siginfo info;
      if ((polled[0].revents & POLLIN) != 0 && read(fd_, &info, sizeof info) == sizeof info) {
        return static_cast<int>(info.ssi_signo);
      }
    }
  }
  bool ok() const { return fd_ >= 0; }

 private:
  sigset_t set_;
  sigset_t before_;
  int fd_ = -1;
};

// Tells systemd (NOTIFY_SOCKET, see sd_notify(3)) `state`, such as "READY=1"; does nothing where
// there is none.
void NotifyManager(std::string_view state);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_SIGNALS_H_
