#include "generation/prompt_thread.h"

#include <malloc.h>

#include <utility>

namespace glmd {

PromptThread::~PromptThread() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  has_changed_.notify_one();
  thread_.join();
}

void PromptThread::make(Submit submit) {
  {
    const std::lock_guard lock(mutex_);
    submits_.push_back(std::move(submit));
  }
  has_changed_.notify_one();
}

void PromptThread::forget(RequestId id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(submits_, [&](const Submit& submit) { return submit.id == id; });
}

void PromptThread::run() {
  while (std::optional<Submit> submit = wait_for_submit()) {
    Result<Prompt> prompt = make_prompt(*submit, tokenizer_, vocabulary_, text_bytes_max_);
    submit->prompt = {};
    ::malloc_trim(0);  // many times the prompt, which the plan has for the next one only
    channel_.send(Command(PromptReady{std::move(*submit), std::move(prompt)}));
  }
}

std::optional<Submit> PromptThread::wait_for_submit() {
  std::unique_lock lock(mutex_);
  has_changed_.wait(lock, [&] { return is_ending_ || !submits_.empty(); });
  if (is_ending_) return std::nullopt;
  Submit submit = std::move(submits_.front());
  submits_.pop_front();
  return submit;
}

}  // namespace glmd
