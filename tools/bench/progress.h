// How far a bench is, on stderr: one line, rewritten on a terminal, added every few seconds to a
// file. What it measures goes to stdout. Thread: main.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace glmd {

class Progress {
 public:
  // `unit` of what is counted: "tokens".
  Progress(std::string doing, std::string unit, int64_t total);
  ~Progress();  // the line goes
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `rate`, if any, is told beside it, as "3.1 tok/s".
  void show(int64_t done, const std::string& rate = "");

 private:
  const std::string doing_, unit_;
  const int64_t total_;
  const bool is_terminal_;
  const std::chrono::steady_clock::time_point started_at_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_at_ = started_at_;
};

}  // namespace glmd
