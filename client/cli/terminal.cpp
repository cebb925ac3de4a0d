#include "client/cli/terminal.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

namespace glmd {
namespace {

volatile std::sig_atomic_t interrupts = 0;

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {  // a terminal or pipe that someone else made non-blocking
      pollfd ready{descriptor, POLLOUT, 0};
      ::poll(&ready, 1, -1);
      continue;
    }
    if (count < 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

}  // namespace

Result<void> write_answer(std::string_view text) {
  if (write_all(STDOUT_FILENO, text)) return {};
  if (errno == EPIPE) return error(ErrorKind::cancelled, "the reader of the answer left");
  return error(ErrorKind::io, "write the answer: {}", std::strerror(errno));
}

bool has_color(Color color) {
  if (color != Color::automatic) return color == Color::always;
  if (is_set("NO_COLOR")) return false;
  if (is_set("CLICOLOR_FORCE")) return true;
  const char* terminal = std::getenv("TERM");
  if (terminal && std::string_view(terminal) == "dumb") return false;
  return is_stderr_terminal();
}

void write_thought(std::string_view text, bool is_dim) {
  write_all(STDERR_FILENO, is_dim ? "\x1b[2m" + std::string(text) + "\x1b[0m" : std::string(text));
}

bool is_stderr_terminal() {
  return isatty(STDERR_FILENO) == 1;
}

bool is_stdin_piped() {
  struct stat status {};
  if (fstat(STDIN_FILENO, &status) != 0) return false;
  return S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode) || S_ISSOCK(status.st_mode);
}

Result<std::string> read_stdin(int64_t bytes_max) {
  std::string text;
  std::array<char, 65536> bytes;
  while (true) {
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return error(ErrorKind::io, "read stdin: {}", std::strerror(errno));
    if (count == 0) return text;
    text.append(bytes.data(), static_cast<size_t>(count));
    if (std::ssize(text) > bytes_max) {
      return error(ErrorKind::bad_input, "stdin has more than {} bytes", bytes_max);
    }
  }
}

void count_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupts = interrupts + 1; };  // no SA_RESTART: waits end
  sigaction(SIGINT, &action, nullptr);
}

int interrupt_count() {
  return interrupts;
}

}  // namespace glmd
