#include "records/routing_records.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "platform/log.h"
#include "settings/setting_places.h"

namespace glmd {
namespace {

constexpr std::chrono::minutes save_interval(5);
constexpr double prior_tokens = 4;  // what a history weighs against what is used now
constexpr const char* history_name = "usage-history";

}  // namespace

UsageHistorySaver::UsageHistorySaver(UsageHistory& history, std::string path,
                                     std::chrono::nanoseconds interval)
    : history_(history), path_(std::move(path)), interval_(interval), thread_([this] { run(); }) {}

UsageHistorySaver::~UsageHistorySaver() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void UsageHistorySaver::run() {
  // Signals are for the loop; and above a limit on file sizes write() shall answer EFBIG.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);

  std::unique_lock<std::mutex> lock(mutex_);
  bool is_last = false;  // what changed before the end is saved, however soon the end comes
  while (!is_last) {
    is_last = wake_.wait_for(lock, interval_, [this] { return is_closing_; });
    lock.unlock();
    save();
    lock.lock();
  }
}

void UsageHistorySaver::save() {
  const Result<bool> saved = history_.save(path_);
  if (!saved.ok() && !has_failed_) {
    log_warning("usage history: {}, continuing", saved.error().message);
  }
  has_failed_ = !saved.ok();
}

Result<RoutingRecords> RoutingRecords::open(const Settings& settings, const Container& container) {
  RoutingRecords records;
  records.shape_ = routing_shape(container);
  if (settings.trace_routing) {
    records.trace_ = TRY_CONTEXT(
        RoutingTraceWriter::create(*settings.trace_routing, records.shape_,
                                   [](const Error& cause) {
                                     log_warning("trace-routing: {}: the trace ends, continuing",
                                                 cause.message);
                                   }),
        "trace-routing");
  }
  if (settings.keeps_usage_history && settings.state_directory) {
    const Result<void> place = check_written_folder(*settings.state_directory);
    if (!place.ok()) {
      log_warning("state-directory: {}: the usage history cannot be saved there, continuing",
                  place.error().message);
    }
    records.open_history(*settings.state_directory);
  } else if (settings.keeps_usage_history) {
    log_info("usage history: none is kept: no state directory is given");
  }
  return records;
}

namespace {

// A save would put a file in the place of a link, a pipe or a folder. A link is told apart from
// what it leads to.
Result<void> check_history_place(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return {};
  return error(ErrorKind::config, "{}: exists and is no regular file", path);
}

Result<void> load_history(UsageHistory& history, const std::string& path) {
  TRY(check_history_place(path));
  return history.load(path);
}

// What may be replaced: a history, damaged or of another model.
bool is_dropped(const Error& cause) {
  return cause.kind == ErrorKind::corrupt || cause.kind == ErrorKind::bad_input;
}

// False where another daemon has it. A folder that cannot be locked is used all the same.
bool lock_folder(const File& folder) {
  return folder.descriptor() < 0 || ::flock(folder.descriptor(), LOCK_EX | LOCK_NB) == 0 ||
         errno != EWOULDBLOCK;
}

}  // namespace

void RoutingRecords::open_history(const std::string& state_directory) {
  const std::string path = state_directory + "/" + history_name;
  state_folder_ = File(::open(state_directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), path);
  const bool is_ours = lock_folder(state_folder_);
  history_ = std::make_unique<UsageHistory>(shape_);
  const Result<void> loaded = load_history(*history_, path);
  if (loaded.ok()) {
    log_info("usage history: {}", path);
  } else if (is_dropped(loaded.error())) {
    log_warning("usage history: {}: dropped, continuing", loaded.error().message);
  } else if (loaded.error().kind != ErrorKind::not_found) {
    log_warning("usage history: {}: not touched, none is kept, continuing", loaded.error().message);
    history_.reset();
    return;
  }
  if (!is_ours) {
    log_warning("usage history: {}: another daemon saves it: this one does not, continuing", path);
    return;
  }
  saver_ = std::make_unique<UsageHistorySaver>(*history_, path, save_interval);
}

std::vector<float> RoutingRecords::usage_prior() const {
  if (!history_) return {};
  return glmd::usage_prior(history_->counts(), shape_.experts, shape_.chosen, prior_tokens);
}

std::vector<RoutingObserver*> RoutingRecords::observers() const {
  std::vector<RoutingObserver*> observers;
  if (trace_) observers.push_back(trace_.get());
  if (history_) observers.push_back(history_.get());
  return observers;
}

}  // namespace glmd
