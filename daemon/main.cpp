// glmd: settings, then the plan, then two threads: this one becomes the loop, the other computes.
#include <cstdio>
#include <filesystem>

#include "doctor/doctor.h"
#include "doctor/doctor_facts.h"
#include "host/memory_sources.h"
#include "host/memory_watch.h"
#include "host/speed_probe.h"
#include "plan/memory_plan.h"
#include "plan/plan_table.h"
#include "platform/counted.h"
#include "platform/cpu.h"
#include "platform/file.h"
#include "platform/log.h"
#include "platform/open_files.h"
#include "platform/shortage.h"
#include "platform/standard_streams.h"
#include "records/routing_records.h"
#include "served/served_model.h"
#include "server/server.h"
#include "settings/setting_places.h"
#include "settings/settings.h"
#include "storage/container.h"
#include "storage/reader_choice.h"

namespace glmd {
namespace {

constexpr std::string_view embedded_model = "share/glmd/models/mini";

// bin/../share in the build tree, sbin/../share where installed.
Result<std::string> model_folder(const Settings& settings) {
  if (settings.model) return *settings.model;
  std::error_code failure;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failure);
  if (failure) {
    return error(ErrorKind::config,
                 "no --model given, and the embedded model is found from /proc/self/exe: {}",
                 failure.message());
  }
  const std::string folder =
      (program.parent_path().parent_path() / std::string(embedded_model)).string();
  if (!path_exists(folder)) {
    return error(ErrorKind::config, "no --model given, and the embedded model is not at {}",
                 folder);
  }
  return folder;
}

Result<const KernelTable*> kernels_for(const Settings& settings) {
  const KernelTable* kernels = find_kernels(settings.kernels.c_str());
  if (kernels == nullptr) {
    return error(ErrorKind::config, "kernels: this processor cannot run {}", settings.kernels);
  }
  return kernels;
}

Result<void> serve(const Settings& settings, const Container& container, const MemoryPlan& plan,
                   const KernelTable* kernels) {
  const int threads = settings.threads.value_or(physical_core_count());
  log_info("{}: identity {:016x}, {} kernels, {}", container.folder(), container.identity(),
           kernels->name, counted(threads, "thread"));
  log_info("memory plan\n{}", plan.to_text());
  if (plan.missed_bytes) {
    log_line(LogLevel::notice,
             fmt::format("memory: {} bytes asked for, {} taken: the limit is {}",
                         *plan.missed_bytes, plan.budget_bytes, plan.budget_source));
  }

  Channel channel;
  ServerOptions options;
  options.socket_path = settings.socket;
  options.limits.payload_bytes_max = plan.prompt_bytes_max;
  options.limits.queued_input_bytes_max = plan.waiting_prompts_bytes_max;
  options.limits.pending_input_bytes_max = plan.waiting_prompts_bytes_max / 2;
  const MachineFacts facts = gather_facts(settings, container.folder(), container);
  options.plan_json = plan_json(facts).to_string();
  options.doctor_json = findings_json(examine(facts)).to_string();
  std::unique_ptr<Server> server = TRY(Server::create(options, channel));
  // The socket is ours: no other daemon with these settings runs and writes what this overwrites.
  const RoutingRecords records = TRY(RoutingRecords::open(settings, container));
  const SteadyClock clock;
  const auto load = [&](const EngineThread::LoadProgress& progress) {
    return load_model(container, plan,
                      {.kernels = kernels,
                       .threads = threads,
                       .reader = settings.reader,
                       .verify = settings.verify,
                       .look_ahead = settings.look_ahead,
                       .kv_format = settings.kv_format,
                       .mirrors = settings.mirrors,
                       .observers = records.observers(),
                       .usage_prior = records.usage_prior(),
                       .experts_held_bytes = &channel.expert_bytes()},
                      progress);
  };
  EngineThread engine(load, channel, clock);
  const MemoryWatch watch(
      ArenaController(plan.arena_bytes_min, plan.arena_bytes,
                      plan.dense_bytes + plan.kv_bytes + plan.scratch_bytes),
      [total_bytes = plan.total_bytes()] { return read_memory(total_bytes); }, channel);
  Result<void> served = server->run();
  channel.send(Quit{});
  std::optional<Error> failure = engine.join();
  channel.set_wake_loop({});
  if (failure) return *failure;
  return served;
}

Result<void> print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  return finish_output();
}

// --plan and --doctor. The exit code.
Result<int> report(const Settings& settings, const std::string& folder) {
  const Result<Container> container = Container::open(folder);
  MachineFacts facts = gather_facts(settings, folder, container);
  if (facts.plan) {
    Result<MachineSpeed> speed = measure_speed(container.value(), settings.reader,
                                               facts.thread_count, facts.plan->budget_bytes);
    if (speed.ok()) {
      facts.speed = speed.value();
    } else {
      log_warning("{}, continuing", speed.error().message);
    }
  }
  if (settings.action == Settings::Action::doctor) {
    const std::vector<Finding> findings = examine(facts);
    TRY(print(settings.is_json ? findings_json(findings).to_string() + "\n"
                               : findings_text(findings)));
    return exit_code_of(findings);
  }
  TRY(print(settings.is_json ? plan_json(facts).to_string() + "\n" : plan_table(plan_json(facts))));
  if (!facts.plan_error) return 0;
  log_error("{}", facts.plan_error->message);
  return exit_code(facts.plan_error->kind);
}

// Where an object is wanted, there is one however little can be said.
void print_failure(const Error& failure, const Asked& asked) {
  if (asked.is_json) {
    const Json object = asked.action == Settings::Action::doctor
                            ? findings_json({finding_of(failure)})
                            : Json::object({{"error", Json::string(failure.message)}});
    std::fprintf(stdout, "%s\n", object.to_string().c_str());
  }
  log_error("{}", failure.message);
}

// --check: what the start would warn of and refuse, a line each. The exit code.
Result<int> check(const Settings& settings, const Container& container, const MemoryPlan& plan) {
  CheckedModel checked = TRY(check_model(container));
  std::vector<Error> faults;
  const Result<void> allowed = check_reader(settings.reader);
  if (allowed.ok()) {
    const OpenedReader opened =
        TRY(open_block_reader(container.files(), {.kind = settings.reader}));
    checked.found += "reader: " + opened.description + "\n";
  } else {
    faults.push_back(allowed.error());
  }
  std::vector<std::string> warnings = std::move(checked.doubts);
  for (const SettingPlace& place : places_of(settings, &container)) {
    if (!place.fault) continue;
    if (place.is_survived) {
      warnings.push_back(place.fault->message);
    } else {
      faults.push_back(*place.fault);
    }
  }
  TRY(print(checked.found + plan.to_text()));
  for (const std::string& warning : warnings) log_warning("{}", warning);
  for (const Error& fault : faults) log_error("{}", fault.message);
  return faults.empty() ? 0 : exit_code(faults.front().kind);
}

Result<int> run(const Settings& settings) {
  const std::string folder = TRY(model_folder(settings));
  const KernelTable* kernels = TRY(kernels_for(settings));
  if (settings.action == Settings::Action::plan || settings.action == Settings::Action::doctor) {
    return report(settings, folder);
  }
  const Container container = TRY(Container::open(folder));
  const MemoryPlan plan = TRY(plan_model(container, settings));
  if (settings.action == Settings::Action::check) return check(settings, container, plan);
  TRY(check_reader(settings.reader));
  TRY(serve(settings, container, plan, kernels));
  return 0;
}

// A shortage in this thread ends here, so that the socket is removed.
Result<int> run_or_say_why(const Settings& settings) {
  try {
    return run(settings);
  } catch (...) {
    const std::optional<Error> shortage = caught_shortage();
    if (!shortage) throw;
    return *shortage;
  }
}

}  // namespace
}  // namespace glmd

int main(int argc, char** argv) {
  glmd::hold_standard_streams();
  glmd::end_on_shortage("glmd");
  glmd::raise_open_files_limit();
  glmd::Asked asked;
  const glmd::Result<std::optional<glmd::Settings>> settings =
      glmd::read_settings(argc, argv, &asked);
  if (!settings.ok()) {
    glmd::print_failure(settings.error(), asked);
    return glmd::exit_code(settings.error().kind);
  }
  if (!settings.value()) return glmd::finish_program("glmd", 0);
  glmd::set_log_level(settings.value()->log_level);
  const glmd::Result<int> result = glmd::run_or_say_why(*settings.value());
  if (!result.ok()) {
    glmd::print_failure(result.error(), asked);
    return glmd::exit_code(result.error().kind);
  }
  return result.value();
}
