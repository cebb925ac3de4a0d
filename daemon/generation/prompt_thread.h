// Makes long prompts into tokens beside the compute thread, one after the other: the slowest text,
// megabytes without a space, takes seconds, and no other request may wait for it. What is done
// comes back to the engine as a command. Thread: compute, and its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "generation/channel.h"
#include "generation/prompt.h"

namespace glmd {

class PromptThread {
 public:
  // Longer ones, rendered, belong here: of the slowest text, this much takes 40 ms.
  static constexpr int64_t prompt_bytes_min = 64 << 10;

  // The arguments outlive this. Throws std::system_error where no thread is to be had: at the
  // start, not with somebody's first long prompt.
  PromptThread(const Tokenizer* tokenizer, int64_t vocabulary, int64_t text_bytes_max,
               Channel& channel)
      : tokenizer_(tokenizer),
        vocabulary_(vocabulary),
        text_bytes_max_(text_bytes_max),
        channel_(channel),
        thread_([this] { run(); }) {}
  ~PromptThread();  // waits for the prompt in work
  PromptThread(const PromptThread&) = delete;
  PromptThread& operator=(const PromptThread&) = delete;

  void make(Submit submit);   // ends in PromptReady
  void forget(RequestId id);  // if its turn has not come; otherwise its PromptReady still comes

 private:
  void run();
  std::optional<Submit> wait_for_submit();  // nothing: the end

  const Tokenizer* tokenizer_;
  int64_t vocabulary_, text_bytes_max_;
  Channel& channel_;
  std::mutex mutex_;
  std::condition_variable has_changed_;
  std::deque<Submit> submits_;  // under the mutex, as the flag
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace glmd
