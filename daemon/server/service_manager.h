// What systemd is told: READY when the weights are resident, STATUS lines, a watchdog that follows
// the compute thread's heartbeat, and more time while loading or draining makes progress. Without
// systemd: nothing. Thread: loop.
#pragma once

#include <cstdint>
#include <string>

namespace glmd {

class ServiceManager {
 public:
  enum class State { loading, ready, draining };
  struct Progress {
    State state = State::loading;
    uint64_t heartbeat = 0;
    bool is_idle = false;  // waits for work: alive without a heartbeat
    std::string status_line;
  };

  ServiceManager();
  void tell_ready();
  void tell_stopping();
  void tick(int64_t now_ms, const Progress& progress);  // several times a second

 private:
  void tell_status(const std::string& line);
  void pat_watchdog(int64_t now_ms, const Progress& progress);
  void extend_timeout(int64_t now_ms, const Progress& progress);

  int64_t watchdog_interval_ms_ = 0;  // 0: no watchdog wanted
  int64_t watchdog_told_ms_ = 0;
  uint64_t watchdog_heartbeat_ = 0;
  int64_t extended_ms_ = 0;
  uint64_t extended_heartbeat_ = 0;
  std::string status_line_;
};

}  // namespace glmd
