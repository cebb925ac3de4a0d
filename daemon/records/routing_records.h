// What the daemon keeps of where tokens were routed: a trace where one was asked for, and the usage
// history of the state directory.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "experts/routing_trace.h"
#include "experts/usage_history.h"
#include "platform/file.h"
#include "settings/settings.h"
#include "storage/container.h"

namespace glmd {

// Saves a history that changed, every `interval` and at its end, on a thread of its own: a disk
// that is slow to sync holds up nothing. A save that fails is said once, and tried again.
class UsageHistorySaver {
 public:
  UsageHistorySaver(UsageHistory& history, std::string path, std::chrono::nanoseconds interval);
  ~UsageHistorySaver();
  UsageHistorySaver(const UsageHistorySaver&) = delete;
  UsageHistorySaver& operator=(const UsageHistorySaver&) = delete;

 private:
  void run();
  void save();

  UsageHistory& history_;
  const std::string path_;
  const std::chrono::nanoseconds interval_;
  bool has_failed_ = false;  // the saving thread's

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_closing_ = false;
  std::thread thread_;
};

// Made before the model, which it outlives.
class RoutingRecords {
 public:
  // Fails where a trace was asked for and cannot be begun. A damaged history or another model's is
  // dropped with a line in the log; anything else of its name is left alone, and none kept. What
  // another daemon saves is read only.
  static Result<RoutingRecords> open(const Settings& settings, const Container& container);

  std::vector<RoutingObserver*> observers() const;
  std::vector<float> usage_prior() const;  // for ModelOptions; empty where no history is kept
  const UsageHistory* history() const { return history_.get(); }  // null: none is kept

 private:
  void open_history(const std::string& state_directory);

  RoutingShape shape_;
  std::unique_ptr<RoutingTraceWriter> trace_;
  std::unique_ptr<UsageHistory> history_;
  File state_folder_;                         // locked: of several daemons one saves
  std::unique_ptr<UsageHistorySaver> saver_;  // null: not saved
};

}  // namespace glmd
