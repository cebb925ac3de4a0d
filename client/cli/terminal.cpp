#include "client/cli/terminal.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "platform/file.h"

namespace glmd {
namespace {

volatile std::sig_atomic_t interrupts = 0;

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {  // a terminal or pipe that someone else made non-blocking
      poll_until(descriptor, POLLOUT, {});
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

std::string printable(std::string_view text) {
  std::string line;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F, C2 80 to C2 9F in UTF-8: terminals obey them, too.
    const bool is_high_control = byte == 0xC2 && i + 1 < text.size() &&
                                 (static_cast<unsigned char>(text[i + 1]) & 0xE0) == 0x80;
    if (byte == '\n') {
      line += "\\n";
    } else if (byte == '\t') {
      line += "\\t";
    } else if (is_high_control) {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    } else if (byte < 0x20 || byte == 0x7F) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += text[i];
    }
  }
  return line;
}

void count_interrupts() {
  struct sigaction action {};
  if (sigaction(SIGINT, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = [](int) { interrupts = interrupts + 1; };  // no SA_RESTART: waits end
  sigaction(SIGINT, &action, nullptr);
}

int interrupt_count() {
  return interrupts;
}

}  // namespace glmd
