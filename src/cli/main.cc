#include <unistd.h>

#include <csignal>
#include <iostream>

#include "cli/cli.h"

extern char** environ;

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  // A reader that goes away (a closed pipe, a client) is an error of that write, not the end.
  std::signal(SIGPIPE, SIG_IGN);
  terrace::cli::Io io;
  io.in = &std::cin;
  io.out = &std::cout;
  io.err = &std::cerr;
  io.in_is_terminal = isatty(STDIN_FILENO) == 1;
  io.err_is_terminal = isatty(STDERR_FILENO) == 1;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string text = *entry;
    size_t split = text.find('=');
    if (split != std::string::npos) {
      io.environment.emplace_back(text.substr(0, split), text.substr(split + 1));
    }
  }
  return terrace::cli::RunCli(std::vector<std::string>(argv + 1, argv + argc), &io);
}
