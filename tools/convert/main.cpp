// glmd-convert SOURCE TARGET: a Hugging Face checkpoint folder becomes a container that glmd
// serves.
#include <fmt/format.h>
#include <sysexits.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "tools/convert/converter.h"

namespace {

volatile std::sig_atomic_t wants_stop = 0;

void ask_to_stop(int) {
  wants_stop = 1;
}

// One line that is rewritten on a terminal; on a file, a line every few seconds.
class ProgressLine {
 public:
  bool show(const glmd::ConvertProgress& progress) {
    if (!progress.note.empty()) {
      clear();
      fmt::print(stderr, "glmd-convert: {}\n", progress.note);
      return wants_stop == 0;
    }
    const auto now = std::chrono::steady_clock::now();
    const bool is_last = progress.bytes_done == progress.bytes_total;
    if (now - shown_at_ <
            (is_terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10)) &&
        !is_last)
      return wants_stop == 0;
    shown_at_ = now;
    const double seconds = std::chrono::duration<double>(now - started_at_).count();
    const double done = static_cast<double>(progress.bytes_done - progress.bytes_kept);
    const double left = static_cast<double>(progress.bytes_total - progress.bytes_done);
    fmt::print(stderr, "{}glmd-convert: {} {:.1f} of {:.1f} MB, {:.0f} MB/s, {:.0f} s left{}",
               is_terminal_ ? "\r\033[K" : "", progress.file,
               static_cast<double>(progress.bytes_done) / 1e6,
               static_cast<double>(progress.bytes_total) / 1e6,
               done / 1e6 / std::max(seconds, 1e-3), done > 0 ? left * seconds / done : 0.0,
               is_terminal_ ? "" : "\n");
    std::fflush(stderr);
    return wants_stop == 0;
  }
  void clear() {
    if (is_terminal_) fmt::print(stderr, "\r\033[K");
  }

 private:
  const bool is_terminal_ = ::isatty(STDERR_FILENO) == 1;
  const std::chrono::steady_clock::time_point started_at_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_at_ = started_at_;
};

}  // namespace

int main(int argc, char** argv) {
  using glmd::Policy;
  glmd::ConvertOptions options;
  options.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));

  CLI::App app("Converts a Hugging Face checkpoint of GLM-5.2's family into a container for glmd.",
               "glmd-convert");
  app.set_version_flag("--version", "glmd-convert " GLMD_VERSION);
  app.add_option("SOURCE", options.source, "checkpoint folder: config.json and safetensors")
      ->required();
  app.add_option("TARGET", options.target, "folder to make; TARGET.partial until it is whole")
      ->required();
  app.add_option("--experts", options.policies.experts, "routed experts: nl4 (default), q8, exact")
      ->transform(CLI::Transformer(std::map<std::string, Policy>{
          {"nl4", Policy::nl4}, {"q8", Policy::q8}, {"exact", Policy::exact}}));
  app.add_option("--dense", options.policies.dense, "all else: nl5 (default), nl4, q8, exact")
      ->transform(CLI::Transformer(std::map<std::string, Policy>{{"nl5", Policy::nl5},
                                                                 {"nl4", Policy::nl4},
                                                                 {"q8", Policy::q8},
                                                                 {"exact", Policy::exact}}));
  app.add_option("--latent-norm-eps", options.latent_norm_eps,
                 "epsilon of the latent norms (default 1e-5)")
      ->check(CLI::Range(1e-30, 0.1));
  app.add_option("--ignore", options.ignored,
                 "leave out tensors that match (*, ?, [...]); repeatable");
  app.add_option("--threads", options.threads, "threads that encode")->check(CLI::Range(1, 1024));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? EX_OK : EX_USAGE;
  }
  std::signal(SIGINT, ask_to_stop);
  std::signal(SIGTERM, ask_to_stop);

  ProgressLine line;
  const glmd::Result<void> result = glmd::convert(
      options, [&line](const glmd::ConvertProgress& progress) { return line.show(progress); });
  line.clear();
  if (result.ok()) return EX_OK;
  fmt::print(stderr, "glmd-convert: {}\n", result.error().message);
  return glmd::exit_code(result.error().kind);
}
