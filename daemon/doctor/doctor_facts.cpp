#include "doctor/doctor_facts.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "platform/cpu.h"
#include "platform/file.h"
#include "served/served_model.h"
#include "settings/setting_places.h"
#include "storage/dense_weights.h"
#include "storage/io_uring_reader.h"

namespace glmd {
namespace {

constexpr int64_t team_tasks_per_layer = 14;  // counted: 86 a token in the 6 of the embedded model
constexpr const char* service_user = "glmd";
constexpr const char* service_state_folder = "/var/lib/glmd";

// Files of /proc and /sys say nothing of their size, so they are read as streams.
std::string read_line_after(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(" \t:", key.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

int64_t number_in(const std::string& text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// "always [madvise] never" -> "madvise"
std::string chosen_word(const std::string& text) {
  const size_t begin = text.find('['), end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos) return "";
  return text.substr(begin + 1, end - begin - 1);
}

// "some avg10=12.34 avg60=..." -> 12.34
std::optional<double> waiting_percent(const std::string& root) {
  double percent = 0;
  const std::string line = read_line_after(root + "/proc/pressure/cpu", "some avg10=");
  std::istringstream text(line);
  if (!(text >> percent)) return std::nullopt;
  return percent;
}

uint64_t soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 ? static_cast<uint64_t>(limit.rlim_cur) : 0;
}

Identity identity_of(const passwd& entry) {
  Identity identity{entry.pw_name, entry.pw_uid, {}};
  int count = 64;
  identity.groups.resize(static_cast<size_t>(count));
  if (getgrouplist(entry.pw_name, entry.pw_gid, identity.groups.data(), &count) < 0) count = 0;
  identity.groups.resize(static_cast<size_t>(count));
  return identity;
}

Identity own_identity() {
  if (const passwd* entry = getpwuid(geteuid())) return identity_of(*entry);
  return {std::to_string(geteuid()), geteuid(), {getegid()}};
}

std::string name_of_file_system(int64_t type) {
  constexpr std::array<std::pair<int64_t, const char*>, 10> names = {{{0xEF53, "ext4"},
                                                                      {0x58465342, "xfs"},
                                                                      {0x9123683E, "btrfs"},
                                                                      {0x01021994, "tmpfs"},
                                                                      {0x794c7630, "overlay"},
                                                                      {0x6969, "nfs"},
                                                                      {0x65735546, "fuse"},
                                                                      {0x01021997, "9p"},
                                                                      {0xFF534D42, "cifs"},
                                                                      {0x858458F6, "ramfs"}}};
  for (const auto& [number, name] : names) {
    if (number == type) return name;
  }
  return fmt::format("file system {:#x}", type);
}

// While it lives, the kernel judges what this thread does with files as that of somebody else. Only
// this thread: the C library's setgroups() would change all of them.
class ActingAs {
 public:
  explicit ActingAs(const Identity& identity) : uid_(geteuid()), gid_(getegid()) {
    if (identity.uid == uid_ || identity.groups.empty()) return;
    const int count = ::getgroups(0, nullptr);
    if (count < 0) return;  // what cannot be put back is not changed
    groups_.resize(static_cast<size_t>(count));
    ::getgroups(count, groups_.data());
    is_acting_ = ::syscall(SYS_setgroups, identity.groups.size(), identity.groups.data()) == 0;
    if (!is_acting_) return;
    ::setfsgid(identity.groups.front());
    ::setfsuid(identity.uid);
  }
  ~ActingAs() {
    if (!is_acting_) return;
    ::setfsuid(uid_);
    ::setfsgid(gid_);
    CHECK(::syscall(SYS_setgroups, groups_.size(), groups_.data()) == 0);
  }
  ActingAs(const ActingAs&) = delete;
  ActingAs& operator=(const ActingAs&) = delete;

  // The only way to ask is to set what is no user.
  static bool is_possible(const Identity& identity) {
    const ActingAs acting(identity);
    return static_cast<uid_t>(::setfsuid(static_cast<uid_t>(-1))) == identity.uid;
  }

 private:
  uid_t uid_;
  gid_t gid_;
  std::vector<gid_t> groups_;
  bool is_acting_ = false;
};

FileFact fact_of(const std::string& path, const Identity& identity) {
  FileFact fact;
  fact.path = path;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return fact;
  fact.exists = true;
  fact.is_folder = S_ISDIR(status.st_mode);
  fact.mode = status.st_mode & 07777;
  fact.uid = status.st_uid;
  fact.gid = status.st_gid;
  const ActingAs acting(identity);
  for (const uint32_t right : {may_read, may_write, may_enter}) {
    if (may_access(path, static_cast<int>(right))) fact.rights |= right;
  }
  return fact;
}

// Bytes that one token moves: of the embedding it looks up one row, all else that is dense it
// reads.
TokenCost cost_of(const Container& container, int64_t dense_bytes) {
  TokenCost cost;
  cost.dense_bytes = dense_bytes;
  if (const Tensor* embedding = container.find("embedding")) cost.dense_bytes -= embedding->bytes;
  if (const Tensor* head = container.find("head")) cost.head_bytes = head->bytes;
  const CheckpointConfig& config = container.checkpoint();
  int64_t experts_bytes = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const Tensor* expert = container.find(fmt::format("layers.{}.experts.0", layer));
    if (expert == nullptr) continue;
    cost.experts += config.experts_per_token;
    cost.expert_count += config.n_routed_experts;
    experts_bytes += config.n_routed_experts * expert->bytes;
  }
  cost.team_tasks = config.layers * team_tasks_per_layer;
  if (cost.expert_count > 0) cost.expert_bytes = experts_bytes / cost.expert_count;
  return cost;
}

void add_container(const Container& container, MachineFacts& facts) {
  PlaceFact& model = facts.places.front();
  for (const std::string& file : container.files()) {
    model.contents.push_back(fact_of(file, facts.identity));
  }
  facts.model_file_count = std::ssize(container.files());
  facts.has_tokenizer = container.has_tokenizer();
  if (!container.files().empty()) {
    const Result<File> file = File::open_direct(container.files().front());
    if (file.ok()) model.has_direct = file.value().is_direct();
  }
  facts.dense_bytes = DenseWeights::bytes_needed(container);
  facts.cost = cost_of(container, facts.dense_bytes);
}

// Why the container does not open may be that a file of it cannot be read.
void add_unopened_files(const std::string& model_folder, MachineFacts& facts) {
  const Result<std::vector<std::string>> names = list_directory(model_folder);
  if (!names.ok()) return;
  for (const std::string& name : names.value()) {
    if (!name.ends_with(".json") && !name.ends_with(".safetensors")) continue;
    facts.places.front().contents.push_back(fact_of(model_folder + "/" + name, facts.identity));
  }
}

// As the identity would find them.
std::vector<SettingPlace> find_places(const Settings& settings, const Result<Container>& container,
                                      const Identity& identity) {
  const ActingAs acting(identity);
  return places_of(settings, container.ok() ? &container.value() : nullptr);
}

void add_setting_places(const Settings& settings, const Result<Container>& container,
                        MachineFacts& facts) {
  for (SettingPlace& named : find_places(settings, container, facts.identity)) {
    PlaceFact place = gather_place(named.setting, named.folder, facts.identity);
    place.is_required = false;
    place.is_written = named.is_written;
    place.fault = std::move(named.fault);
    place.is_survived = named.is_survived;
    place.remedy = std::move(named.remedy);
    facts.places.push_back(std::move(place));
  }
}

// Those that systemd makes for the service, where no setting names others.
void add_service_places(const Settings& settings, MachineFacts& facts) {
  if (settings.socket == Settings().socket) {
    PlaceFact socket = gather_place("socket", parent_folder(settings.socket), facts.identity);
    socket.is_required = false;
    // Of the service, systemd makes it and hands it over.
    socket.is_written = !facts.is_service && std::getenv("LISTEN_FDS") == nullptr;
    socket.remedy = "systemctl start glmd.socket makes it; without systemd, --socket PATH";
    facts.places.push_back(std::move(socket));
  }
  if (!settings.state_directory) {
    PlaceFact state = gather_place("state", service_state_folder, facts.identity);
    state.is_required = false;
    state.is_written = facts.is_service;
    state.remedy = "systemd makes it for the service; without systemd, --state-directory DIR";
    facts.places.push_back(std::move(state));
  }
}

Result<void> add_plan(const Container& container, const Settings& settings, MachineFacts& facts) {
  const MemoryNeeds needs = TRY(memory_needs(container, settings));
  Result<MemoryPlan> plan = plan_memory(needs);
  if (plan.ok()) {
    facts.plan = std::move(plan).value();
    return {};
  }
  if (plan.error().kind == ErrorKind::no_memory) facts.floor = TRY(plan_floor(needs));
  return std::move(plan).error();
}

}  // namespace

MachineFacts gather_machine(const Settings& settings, const std::string& root) {
  MachineFacts facts;
  facts.processor = read_line_after(root + "/proc/cpuinfo", "model name");
  utsname names{};
  if (uname(&names) == 0) facts.kernel_release = names.release;
  facts.core_count = physical_core_count(root);
  if (const KernelTable* kernels = find_kernels(settings.kernels.c_str())) {
    facts.kernels = kernels->name;
  }
  facts.thread_count = settings.threads.value_or(facts.core_count);
  std::ifstream(root + "/proc/loadavg") >> facts.load_average;
  facts.waiting_percent = waiting_percent(root);
  facts.memory_bytes = 1024 * number_in(read_line_after(root + "/proc/meminfo", "MemTotal:"));
  facts.swap_bytes = 1024 * number_in(read_line_after(root + "/proc/meminfo", "SwapTotal:"));
  facts.memory_setting_bytes = settings.memory_bytes;
  facts.reader = settings.reader;
  if (settings.reader != ReaderKind::threads) {
    const Result<void> allowed = IoUringReader::probe();
    if (!allowed.ok()) facts.ring_error = allowed.error();
  }
  facts.memlock_bytes = soft_limit(RLIMIT_MEMLOCK);
  facts.descriptor_count = soft_limit(RLIMIT_NOFILE);
  facts.address_space_bytes = soft_limit(RLIMIT_AS);
  facts.huge_pages =
      chosen_word(read_line_after(root + "/sys/kernel/mm/transparent_hugepage/enabled", ""));
  facts.io_uring_disabled =
      static_cast<int>(number_in(read_line_after(root + "/proc/sys/kernel/io_uring_disabled", "")));
  facts.overcommit =
      static_cast<int>(number_in(read_line_after(root + "/proc/sys/vm/overcommit_memory", "")));
  facts.has_pressure = path_exists(root + "/proc/pressure/memory");

  facts.identity = own_identity();
  const passwd* service = geteuid() == 0 ? getpwnam(service_user) : nullptr;
  if (service != nullptr) {
    Identity identity = identity_of(*service);
    facts.is_service = ActingAs::is_possible(identity);
    if (facts.is_service) facts.identity = std::move(identity);
  }
  return facts;
}

PlaceFact gather_place(std::string purpose, const std::string& path, const Identity& identity) {
  PlaceFact place;
  place.purpose = std::move(purpose);
  std::error_code failure;
  std::filesystem::path whole = std::filesystem::weakly_canonical(path, failure);
  if (failure || whole.empty()) whole = path.empty() ? "." : path;
  std::filesystem::path folder;
  for (const auto& part : whole) {
    folder /= part;
    place.folders.push_back(fact_of(folder.string(), identity));
  }
  if (place.folders.empty()) place.folders.push_back(fact_of(path, identity));
  struct statfs status {};
  if (::statfs(whole.c_str(), &status) == 0) {
    place.file_system = name_of_file_system(static_cast<int64_t>(status.f_type));
    place.free_bytes = static_cast<int64_t>(status.f_bavail) * status.f_bsize;
  }
  return place;
}

static void add_texts(const Container& container, MachineFacts& facts) {
  const Result<CheckedModel> checked = check_model(container);
  if (checked.ok()) {
    facts.text_doubts = checked.value().doubts;
  } else {
    facts.text_error = checked.error();
  }
}

MachineFacts gather_facts(const Settings& settings, const std::string& model_folder,
                          const Result<Container>& container) {
  MachineFacts facts = gather_machine(settings);
  PlaceFact model = gather_place("model", model_folder, facts.identity);
  model.remedy = "--model with the folder of a container; glmd-convert makes one";
  facts.places.push_back(std::move(model));
  add_setting_places(settings, container, facts);
  add_service_places(settings, facts);
  if (!container.ok()) {
    facts.plan_error = container.error();
    add_unopened_files(model_folder, facts);
    return facts;
  }
  add_container(container.value(), facts);
  add_texts(container.value(), facts);
  const Result<void> planned = add_plan(container.value(), settings, facts);
  if (!planned.ok()) facts.plan_error = planned.error();
  return facts;
}

}  // namespace glmd
