#include "protocol/line_reader.h"

#include <algorithm>
#include <utility>

#include "protocol/limits.h"

namespace glmd::protocol {

void LineReader::feed(std::string_view bytes) {
  if (has_failed_) return;
  input_.erase(0, taken_);
  searched_ -= std::min(searched_, taken_);
  taken_ = 0;
  input_ += bytes;
}

std::optional<LineReader::Item> LineReader::next() {
  if (has_failed_) return std::nullopt;
  return is_in_payload_ ? next_payload() : next_line();
}

void LineReader::expect_payload(int64_t bytes) {
  is_in_payload_ = is_kept_ = true;
  remaining_bytes_ = bytes;
  payload_.clear();
}

void LineReader::expect_discard(int64_t bytes) {
  expect_payload(bytes);
  is_kept_ = false;
}

void LineReader::discard_rest() {
  is_kept_ = false;
  payload_ = std::string();  // clear() would keep the memory
}

LineReader::Waiting LineReader::waiting() const {
  if (has_failed_) return Waiting::nothing;
  if (is_in_payload_) return Waiting::payload;
  return taken_ < input_.size() ? Waiting::line_end : Waiting::nothing;
}

std::optional<LineReader::Item> LineReader::next_line() {
  const size_t end = input_.find('\n', std::max(taken_, searched_));
  const size_t length = (end == std::string::npos ? input_.size() : end) - taken_;
  if (static_cast<int64_t>(length) >= line_bytes_max) {
    return fail(ErrorCode::too_long, "a line has at most 4096 bytes");
  }
  if (end == std::string::npos) {
    searched_ = input_.size();
    return std::nullopt;
  }
  Line line{input_.substr(taken_, length)};
  taken_ = end + 1;
  return line;
}

std::optional<LineReader::Item> LineReader::next_payload() {
  const int64_t available = static_cast<int64_t>(input_.size() - taken_);
  const int64_t count = std::min(available, remaining_bytes_);
  if (is_kept_) payload_.append(input_, taken_, static_cast<size_t>(count));
  taken_ += static_cast<size_t>(count);
  remaining_bytes_ -= count;
  if (remaining_bytes_ > 0 || taken_ == input_.size()) return std::nullopt;
  if (input_[taken_] != '\n')
    return fail(ErrorCode::bad_frame, "no LF where the payload should end");
  ++taken_;
  is_in_payload_ = false;
  return Payload{std::exchange(payload_, {})};
}

Fault LineReader::fail(ErrorCode code, std::string message) {
  has_failed_ = true;
  input_.clear();
  payload_.clear();
  taken_ = searched_ = 0;
  return {code, std::nullopt, std::move(message)};
}

}  // namespace glmd::protocol
