// glmd-mirror: copies of a container's experts on further disks, from which glmd --mirror reads.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>

#include "platform/counted.h"
#include "storage/mirror.h"
#include "tools/command_line.h"
#include "tools/convert/container_folder.h"
#include "tools/mirror/staging.h"

namespace glmd {
namespace {

volatile std::sig_atomic_t wants_stop = 0;

struct Options {
  std::string container, folder, history;
  int64_t bytes = INT64_MAX;
  int64_t reserve_bytes = int64_t{2} << 30;
};

// What can be staged: `plan` and `stage` refuse the same.
Result<MirrorPlan> plan_of(const Options& options, const Container& container) {
  TRY(check_mirror_place(container, options.folder));
  const auto order = options.history.empty() ? Result(even_order(container))
                                             : order_of_use(options.history, container);
  const int64_t available =
      TRY(mirror_bytes_available(container, options.folder, options.reserve_bytes));
  MirrorPlan plan = plan_mirror(TRY(order), std::min(options.bytes, available));
  TRY(check_staging(container, plan, options.folder, options.reserve_bytes));
  const auto warning = same_device_warning(options.folder, container);
  if (warning) print_text(stderr, "glmd-mirror: warning: {}\n", *warning);
  return plan;
}

void print_plan(const Options& options, const Container& container, const MirrorPlan& plan) {
  print_text(stdout, "{}: {} of {} experts, {:.1f} MB\n", options.folder, plan.experts.size(),
             even_order(container).size(), static_cast<double>(plan.bytes) / 1e6);
}

Result<void> plan(Options options) {
  options.folder = TRY(target_folder(options.folder, "FOLDER"));
  const Container container = TRY(Container::open(options.container));
  print_plan(options, container, TRY(plan_of(options, container)));
  return {};
}

Result<void> stage(Options options) {
  options.folder = TRY(target_folder(options.folder, "FOLDER"));
  const Container container = TRY(Container::open(options.container));
  const MirrorPlan plan = TRY(plan_of(options, container));
  int64_t shown_percent = -1;
  TRY(stage_mirror(container, plan, options.folder, options.reserve_bytes,
                   [&](const StageProgress& progress) {
                     const int64_t percent = progress.bytes_done * 100 / progress.bytes_total;
                     if (percent / 5 != shown_percent / 5 || shown_percent < 0) {
                       print_text(stderr, "glmd-mirror: {} % of {:.1f} MB\n", percent,
                                  static_cast<double>(progress.bytes_total) / 1e6);
                     }
                     shown_percent = percent;
                     return wants_stop == 0;
                   }));
  print_plan(options, container, plan);
  return {};
}

Result<void> verify(const Options& options) {
  const Container container = TRY(Container::open(options.container));
  const std::vector<std::string> problems = verify_mirror(container, options.folder);
  for (const std::string& problem : problems) print_text(stderr, "glmd-mirror: {}\n", problem);
  if (!problems.empty()) {
    return error(ErrorKind::corrupt, "{}: {}", options.folder, counted(problems.size(), "problem"));
  }
  print_text(stdout, "{}: sound\n", options.folder);
  return {};
}

}  // namespace
}  // namespace glmd

int main(int argc, char** argv) {
  glmd::begin_program("glmd-mirror");
  glmd::Options options;
  CLI::App app("Keeps copies of a container's experts on further disks.", "glmd-mirror");
  app.set_version_flag("--version", "glmd-mirror " GLMD_VERSION);
  app.require_subcommand(0, 1);
  const auto add = [&](const char* name, const char* help) {
    CLI::App* command = app.add_subcommand(name, help);
    command->add_option("CONTAINER", options.container, "folder that glmd serves")->required();
    command->add_option("FOLDER", options.folder, "the mirror, on another disk")->required();
    return command;
  };
  CLI::App* plan = add("plan", "say how many experts would be copied");
  CLI::App* stage = add("stage", "copy them; continues what was interrupted");
  add("verify", "read all of a mirror and compare the checksums");
  for (CLI::App* command : {plan, stage}) {
    command->add_option("--bytes", options.bytes, "at most, e.g. 200G (default: what is free)")
        ->transform(glmd::byte_size(0));
    command->add_option("--reserve", options.reserve_bytes, "to leave free (default 2G)")
        ->transform(glmd::byte_size(0));
    command->add_option("--history", options.history,
                        "the most used first: STATE/usage-history of glmd");
  }
  if (const auto code = glmd::parse_command_line(app, argc, argv)) return *code;
  std::signal(SIGINT, [](int) { glmd::wants_stop = 1; });
  std::signal(SIGTERM, [](int) { glmd::wants_stop = 1; });
  const glmd::Result<void> result = plan->parsed()    ? glmd::plan(options)
                                    : stage->parsed() ? glmd::stage(options)
                                                      : glmd::verify(options);
  return glmd::end_program(app, result);
}
