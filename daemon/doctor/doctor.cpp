#include "doctor/doctor.h"

#include <algorithm>
#include <utility>

#include "plan/plan_table.h"
#include "platform/counted.h"

namespace glmd {
namespace {

using Findings = std::vector<Finding>;

constexpr int64_t gibibyte = int64_t{1} << 30;

double gigabytes(double bytes) {
  return bytes / 1e9;
}

bool may(const FileFact& file, uint32_t wanted) {
  return (file.rights & wanted) == wanted;
}

// Whether permission bits are what forbids it: otherwise changing them is no remedy.
bool is_forbidden_by_mode(const Identity& identity, const FileFact& file, uint32_t wanted) {
  const auto is_in_group =
      std::find(identity.groups.begin(), identity.groups.end(), file.gid) != identity.groups.end();
  const uint32_t shift = identity.uid == file.uid ? 6 : is_in_group ? 3 : 0;
  return identity.uid != 0 && (file.mode >> shift & wanted) != wanted;
}

std::string remedy_for(const Identity& identity, const FileFact& file, uint32_t wanted) {
  if (!is_forbidden_by_mode(identity, file, wanted)) {
    return fmt::format("getfacl {} and findmnt -T {} tell what forbids it", file.path, file.path);
  }
  if ((wanted & may_write) != 0) {
    return fmt::format("another place, or chown {} {}", identity.name, file.path);
  }
  if ((wanted & may_read) != 0) return fmt::format("chmod a+r {}", file.path);
  return fmt::format("chmod o+x {}, or another place", file.path);
}

void examine_processor(const MachineFacts& facts, Findings& findings) {
  if (facts.kernels == "scalar") {
    findings.push_back({Severity::warning, ErrorKind::config,
                        "kernels: plain C++ is used, which is many times slower than AVX2",
                        "a processor with AVX2, or --kernels auto"});
  }
  if (facts.thread_count > facts.core_count) {
    findings.push_back(
        {Severity::warning, ErrorKind::config,
         fmt::format("threads: {} on {} wait for each other", counted(facts.thread_count, "thread"),
                     counted(facts.core_count, "core")),
         fmt::format("--threads {}", facts.core_count)});
  }
}

std::string remedy_for(const Error& fault) {
  switch (fault.kind) {
    case ErrorKind::usage:
      return "glmd --help lists the options";
    case ErrorKind::not_found:
      return "--model with the folder of a container; glmd-convert makes one";
    case ErrorKind::bad_input:
    case ErrorKind::corrupt:
      return "glmd-inspect verify tells what is damaged; glmd-convert makes the container anew";
    case ErrorKind::config:
      return "another value in the command line or the configuration";
    case ErrorKind::denied:
      return "another user, or chmod";
    default:
      return "dmesg tells what the system met";
  }
}

void examine_model(const MachineFacts& facts, Findings& findings) {
  if (facts.floor) {
    findings.push_back({Severity::error, ErrorKind::no_memory, below_floor(*facts.floor),
                        std::string(floor_remedy), facts.floor->to_text()});
  } else if (facts.plan_error) {
    // A model that cannot be reached was said to be so already.
    const bool is_said = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
      return finding.severity == Severity::error && finding.what.starts_with("model: ");
    });
    if (is_said) return;
    findings.push_back(finding_of(*facts.plan_error));
  }
  if (facts.text_error) findings.push_back(finding_of(*facts.text_error));
  for (const std::string& doubt : facts.text_doubts) {
    findings.push_back({Severity::warning, ErrorKind::bad_input, doubt,
                        "none is needed if it is meant so; else the files of the original model"});
  }
  if (!facts.has_tokenizer) {
    findings.push_back({Severity::warning, ErrorKind::config,
                        "tokenizer: the model has no tokenizer.json: only fmt=tokens is served",
                        "cp tokenizer.json of the checkpoint into the model's folder"});
  }
}

void examine_plan(const MachineFacts& facts, Findings& findings) {
  if (!facts.plan) return;
  const MemoryPlan& plan = *facts.plan;
  if (facts.memory_setting_bytes && *facts.memory_setting_bytes > plan.budget_bytes) {
    findings.push_back(
        {Severity::warning, ErrorKind::config,
         fmt::format("memory: {} bytes are set, {} are the limit: {}", *facts.memory_setting_bytes,
                     plan.budget_bytes, plan.budget_source),
         "a smaller setting, or more room there"});
  }
  if (plan.experts_bytes > 0) {
    const double share =
        static_cast<double>(plan.arena_bytes) / static_cast<double>(plan.experts_bytes);
    if (share < 0.03) {
      findings.push_back(
          {Severity::warning, ErrorKind::no_memory,
           fmt::format("memory: {:.1f} % of the experts fit; nearly every one is read from disk",
                       100 * share),
           "more memory, a shorter context or fewer sessions"});
    }
  }
}

// What is mapped at the start, whether or not it is used.
void examine_address_space(const MachineFacts& facts, Findings& findings) {
  if (!facts.plan || facts.is_service) return;
  const auto mapped_bytes = static_cast<uint64_t>(facts.plan->dense_bytes + facts.plan->kv_bytes +
                                                  facts.plan->arena_bytes);
  if (facts.address_space_bytes >= mapped_bytes) return;
  findings.push_back({Severity::error, ErrorKind::no_memory,
                      fmt::format("address space: the limit is {} bytes, wanted more than {}",
                                  facts.address_space_bytes, mapped_bytes),
                      "LimitAS=infinity in the unit, or ulimit -v unlimited"});
}

void examine_locking(const MachineFacts& facts, Findings& findings) {
  if (facts.is_service) return;  // its unit sets the limits, not our shell
  if (facts.memlock_bytes >= static_cast<uint64_t>(facts.dense_bytes)) return;
  const bool can_swap = facts.swap_bytes > 0;
  findings.push_back(
      {can_swap ? Severity::warning : Severity::note, ErrorKind::config,
       fmt::format(
           "memory lock: the limit of {} bytes is below the {} of the dense weights{}",
           facts.memlock_bytes, facts.dense_bytes,
           can_swap ? ", which may be swapped out" : "; without swap they stay all the same"),
       "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited"});
}

void examine_kernel(const MachineFacts& facts, Findings& findings) {
  constexpr uint64_t own_descriptors = 512;  // connections and what the loop needs
  constexpr uint64_t least_descriptors = 8;  // below which not even the start succeeds
  const auto copies = 1 + std::count_if(facts.places.begin(), facts.places.end(),
                                        [](auto& place) { return place.purpose == "mirrors"; });
  const auto files = static_cast<uint64_t>(facts.model_file_count * copies);
  if (!facts.is_service && facts.descriptor_count < files + own_descriptors) {
    const bool is_too_low = facts.descriptor_count < files + least_descriptors;
    findings.push_back({is_too_low ? Severity::error : Severity::warning,
                        is_too_low ? ErrorKind::io : ErrorKind::config,
                        fmt::format("open files: the limit is {}, wanted {}",
                                    facts.descriptor_count, files + own_descriptors),
                        "LimitNOFILE=65536 in the unit, or ulimit -n"});
  }
  if (facts.huge_pages == "never") {
    findings.push_back({Severity::warning, ErrorKind::config,
                        "huge pages: never; page tables cost time and 0.2 % of the arena",
                        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
  }
  if (facts.overcommit == 2) {
    findings.push_back({Severity::warning, ErrorKind::config,
                        "vm.overcommit_memory is 2: the arena may be refused although it fits",
                        "sysctl vm.overcommit_memory=0"});
  }
  if (facts.memory_bytes == 0) {
    findings.push_back({Severity::warning, ErrorKind::config,
                        "/proc cannot be read: limits of control groups are not known, and the "
                        "arena stays as it is when memory runs short",
                        "mount -t proc proc /proc"});
  } else if (!facts.has_pressure) {
    findings.push_back({Severity::note, ErrorKind::config,
                        "/proc/pressure/memory is missing: only limits make the arena smaller",
                        "the kernel parameter psi=1"});
  }
}

std::string remedy_for_ring(const MachineFacts& facts) {
  if (facts.io_uring_disabled != 0) return "sysctl kernel.io_uring_disabled=0";
  if (facts.ring_error && facts.ring_error->kind == ErrorKind::no_memory) {
    return "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited";
  }
  return "--reader threads, or a container or filter of system calls that allows it";
}

// Where only some are forbidden it, root's own attempt says nothing of the service's.
void examine_reader(const MachineFacts& facts, Findings& findings) {
  if (facts.reader == ReaderKind::threads) return;
  const bool is_disabled = facts.io_uring_disabled != 0;
  const bool is_forbidden = facts.ring_error.has_value();
  if (!is_forbidden && !(is_disabled && facts.is_service)) return;
  std::string what = "reader: ";
  what += is_forbidden ? facts.ring_error->message : "io_uring";
  if (is_disabled) {
    what += fmt::format("{}kernel.io_uring_disabled is {}", is_forbidden ? "; " : ": ",
                        facts.io_uring_disabled);
  }
  const bool is_wanted = facts.reader == ReaderKind::io_uring;
  if (!is_wanted) what += ": experts are read by threads";
  findings.push_back({!is_wanted     ? Severity::note
                      : is_forbidden ? Severity::error
                                     : Severity::warning,
                      ErrorKind::config, std::move(what), remedy_for_ring(facts)});
}

// What of the folders down to a place, or of its contents, is in the way.
std::optional<Finding> find_barrier(const Identity& identity, const PlaceFact& place) {
  const bool is_refused = place.is_required || (place.fault && !place.is_survived);
  const Severity refusal = is_refused ? Severity::error : Severity::warning;
  const Severity absence = is_refused || place.fault ? refusal : Severity::note;
  for (size_t i = 0; i < place.folders.size(); ++i) {
    const FileFact& folder = place.folders[i];
    const bool is_place = i + 1 == place.folders.size();
    if (!folder.exists) {
      return Finding{absence, place.fault ? place.fault->kind : ErrorKind::not_found,
                     fmt::format("{}: {} does not exist", place.purpose, folder.path),
                     place.remedy};
    }
    if (is_place && !folder.is_folder) return std::nullopt;  // nothing that rights would change
    const uint32_t wanted = may_enter | (is_place && place.is_written ? may_write : 0);
    if (!may(folder, wanted)) {
      return Finding{refusal, ErrorKind::denied,
                     fmt::format("{}: user {} may not {} {} (mode {:04o}, owner {})", place.purpose,
                                 identity.name, is_place && place.is_written ? "write in" : "enter",
                                 folder.path, folder.mode, folder.uid),
                     remedy_for(identity, folder, wanted)};
    }
  }
  // One tells of all: the others are likely the same.
  for (const FileFact& file : place.contents) {
    if (file.exists && may(file, may_read)) continue;
    if (!file.exists) {
      return Finding{Severity::error, ErrorKind::not_found,
                     fmt::format("{}: {} does not exist", place.purpose, file.path), place.remedy};
    }
    return Finding{Severity::error, ErrorKind::denied,
                   fmt::format("{}: user {} may not read {} (mode {:04o}, owner {})", place.purpose,
                               identity.name, file.path, file.mode, file.uid),
                   remedy_for(identity, file, may_read)};
  }
  return std::nullopt;
}

void examine_access(const Identity& identity, const PlaceFact& place, Findings& findings) {
  std::optional<Finding> barrier = find_barrier(identity, place);
  if (barrier) {
    findings.push_back(*std::move(barrier));
  } else if (place.fault) {
    findings.push_back({place.is_survived ? Severity::warning : Severity::error, place.fault->kind,
                        place.fault->message, place.remedy});
  }
}

bool is_hidden_from_service(const std::string& path) {
  for (const std::string_view hidden : {"/home", "/root", "/run/user", "/tmp", "/var/tmp"}) {
    if (path.starts_with(hidden) && path.substr(hidden.size()).starts_with('/')) return true;
  }
  return false;
}

void examine_place(const MachineFacts& facts, const PlaceFact& place, Findings& findings) {
  examine_access(facts.identity, place, findings);
  const std::string& path = place.folders.back().path;
  if (facts.is_service && is_hidden_from_service(path + "/")) {
    findings.push_back({Severity::warning, ErrorKind::config,
                        fmt::format("{}: the service does not see {}", place.purpose, path),
                        "a place such as /srv/models, or BindReadOnlyPaths= in the unit"});
  }
  if (place.purpose == "model" && place.has_direct == false) {
    findings.push_back(
        {Severity::warning, ErrorKind::config,
         fmt::format("model: {} ({}) has no direct reads; the page cache takes memory and time",
                     path, place.file_system),
         "ext4 or xfs on a local NVMe disk"});
  }
  const bool needs_room = place.is_written && place.purpose != "socket";
  if (needs_room && place.folders.back().exists && place.free_bytes < gibibyte) {
    findings.push_back(
        {Severity::warning, ErrorKind::io,
         fmt::format("{}: {} bytes are free at {}", place.purpose, place.free_bytes, path),
         fmt::format("room for 1 GiB there, or another --{}",
                     place.purpose == "state" ? "state-directory" : place.purpose)});
  }
}

void examine_speed(const MachineFacts& facts, Findings& findings) {
  constexpr double slow_bytes_per_s = 1e9;
  constexpr int64_t telling_bytes = int64_t{1} << 20;
  if (!facts.speed || facts.speed->disk_bytes_per_s <= 0) return;
  if (facts.speed->disk_bytes_per_s >= slow_bytes_per_s) return;
  // Small reads take their time on any disk.
  if (!facts.cost || facts.cost->expert_bytes < telling_bytes) return;
  const bool is_all_resident = facts.plan && facts.plan->arena_bytes == facts.plan->experts_bytes;
  findings.push_back({is_all_resident ? Severity::note : Severity::warning, ErrorKind::io,
                      fmt::format("disk: experts come at {:.2f} GB/s; NVMe disks reach 3 to 14",
                                  gigabytes(facts.speed->disk_bytes_per_s)),
                      is_all_resident ? "none is needed once all experts are in memory"
                                      : "a faster disk, or more memory"});
}

// Others have the processors.
bool is_busy(const MachineFacts& facts) {
  constexpr double waiting_percent_ample = 10;
  if (facts.waiting_percent) return *facts.waiting_percent > waiting_percent_ample;
  return facts.load_average > 0.5 * facts.core_count;
}

const PlaceFact* find_place(const MachineFacts& facts, std::string_view purpose) {
  for (const PlaceFact& place : facts.places) {
    if (place.purpose == purpose) return &place;
  }
  return nullptr;
}

}  // namespace

std::string_view to_string(Severity severity) {
  if (severity == Severity::note) return "note";
  return severity == Severity::warning ? "warning" : "error";
}

Finding finding_of(const Error& fault) {
  return {Severity::error, fault.kind, fault.message, remedy_for(fault)};
}

std::vector<Finding> examine(const MachineFacts& facts) {
  Findings findings;
  for (const PlaceFact& place : facts.places) examine_place(facts, place, findings);
  examine_model(facts, findings);
  examine_plan(facts, findings);
  examine_address_space(facts, findings);
  examine_reader(facts, findings);
  examine_locking(facts, findings);
  examine_processor(facts, findings);
  examine_speed(facts, findings);
  examine_kernel(facts, findings);
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  return findings;
}

int exit_code_of(const std::vector<Finding>& findings) {
  const bool is_sound = findings.empty() || findings.front().severity != Severity::error;
  return is_sound ? 0 : exit_code(findings.front().kind);
}

std::string findings_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{}: {}\n{}", to_string(finding.severity), finding.what, finding.details);
    text += fmt::format("  remedy: {}\n", finding.remedy);
  }
  return text.empty() ? "nothing is wrong\n" : text;
}

Json findings_json(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    Json object =
        Json::object({{"severity", Json::string(std::string(to_string(finding.severity)))},
                      {"what", Json::string(finding.what)},
                      {"remedy", Json::string(finding.remedy)}});
    if (!finding.details.empty()) object.set("details", Json::string(finding.details));
    list.items().push_back(std::move(object));
  }
  return Json::object({{"exit_code", Json::integer(exit_code_of(findings))}, {"findings", list}});
}

Json plan_json(const MachineFacts& facts) {
  Json load = Json::object({{"average", Json::real(facts.load_average)}});
  if (facts.waiting_percent) load.set("waiting_percent", Json::real(*facts.waiting_percent));
  load.set("is_busy", Json::boolean(is_busy(facts)));
  Json hardware = Json::object({{"processor", Json::string(facts.processor)},
                                {"kernel", Json::string(facts.kernel_release)},
                                {"cores", Json::integer(facts.core_count)},
                                {"threads", Json::integer(facts.thread_count)},
                                {"kernels", Json::string(facts.kernels)},
                                {"memory_bytes", Json::integer(facts.memory_bytes)},
                                {"swap_bytes", Json::integer(facts.swap_bytes)},
                                {"load", std::move(load)}});
  Json json = Json::object({{"hardware", std::move(hardware)}});
  if (const PlaceFact* model = find_place(facts, "model")) {
    Json known = Json::object({{"path", Json::string(model->folders.back().path)}});
    if (!model->file_system.empty()) known.set("file_system", Json::string(model->file_system));
    if (model->has_direct) known.set("has_direct_reads", Json::boolean(*model->has_direct));
    if (facts.cost) {
      known.set("files", Json::integer(facts.model_file_count));
      known.set("experts", Json::integer(facts.cost->expert_count));
      known.set("expert_bytes", Json::integer(facts.cost->expert_bytes));
      known.set("experts_per_token", Json::integer(facts.cost->experts));
    }
    json.set("model", std::move(known));
  }
  if (facts.plan) json.set("memory", facts.plan->to_json());
  if (facts.plan_error) json.set("error", Json::string(facts.plan_error->message));
  if (facts.plan && facts.cost) {
    const TokenNeeds needs = token_needs(*facts.cost, facts.plan->arena_bytes);
    json.set("token", Json::object({{"hit_rate", Json::real(needs.hit_rate)},
                                    {"disk_bytes", Json::real(needs.disk_bytes)},
                                    {"memory_bytes", Json::real(needs.memory_bytes)},
                                    {"head_bytes", Json::real(needs.head_bytes)},
                                    {"team_tasks", Json::real(needs.team_tasks)}}));
  }
  if (facts.speed) {
    json.set("measured",
             Json::object({{"disk_bytes_per_s", Json::real(facts.speed->disk_bytes_per_s)},
                           {"memory_bytes_per_s", Json::real(facts.speed->memory_bytes_per_s)},
                           {"team_task_s", Json::real(facts.speed->team_task_s)}}));
  }
  add_expected(json);
  return json;
}

}  // namespace glmd
