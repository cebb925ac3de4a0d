#include "server/service_manager.h"

#include <systemd/sd-daemon.h>

namespace glmd {
namespace {

void notify(const std::string& text) {
  sd_notify(0, text.c_str());
}

constexpr int64_t extend_interval_ms = 2'000;
// Longer than the interval, so that a late tick costs nothing; short, so that a stalled disk still
// times out.
constexpr const char* extension = "EXTEND_TIMEOUT_USEC=30000000";

}  // namespace

ServiceManager::ServiceManager() {
  uint64_t interval_us = 0;
  if (sd_watchdog_enabled(0, &interval_us) > 0) {
    watchdog_interval_ms_ = static_cast<int64_t>(interval_us / 1000);
  }
}

void ServiceManager::tell_ready() {
  notify("READY=1");
}

void ServiceManager::tell_stopping() {
  notify("STOPPING=1");
}

void ServiceManager::tick(int64_t now_ms, const Progress& progress) {
  tell_status(progress.status_line);
  if (watchdog_interval_ms_ > 0) pat_watchdog(now_ms, progress);
  if (progress.state != State::ready) extend_timeout(now_ms, progress);
}

void ServiceManager::tell_status(const std::string& line) {
  if (line == status_line_) return;
  status_line_ = line;
  notify("STATUS=" + line);
}

void ServiceManager::pat_watchdog(int64_t now_ms, const Progress& progress) {
  if (now_ms - watchdog_told_ms_ < watchdog_interval_ms_ / 4) return;
  if (!progress.is_idle && progress.heartbeat == watchdog_heartbeat_) return;
  watchdog_told_ms_ = now_ms;
  watchdog_heartbeat_ = progress.heartbeat;
  notify("WATCHDOG=1");
}

void ServiceManager::extend_timeout(int64_t now_ms, const Progress& progress) {
  if (now_ms - extended_ms_ < extend_interval_ms) return;
  if (progress.heartbeat == extended_heartbeat_) return;
  extended_ms_ = now_ms;
  extended_heartbeat_ = progress.heartbeat;
  notify(extension);
}

}  // namespace glmd
