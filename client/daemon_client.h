// A connection to glmd for programs that do one thing at a time: it blocks in poll, writes whole
// frames and gives replies one by one. Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "platform/result.h"
#include "protocol/reply.h"
#include "protocol/request.h"

namespace glmd {

class DaemonClient {
 public:
  // Does not wait: a full backlog is `busy`, no listener `unavailable`.
  static Result<DaemonClient> connect(const std::string& socket_path);
  DaemonClient(DaemonClient&& other) noexcept;
  DaemonClient& operator=(DaemonClient&& other) noexcept;
  ~DaemonClient();

  // Both wait at most until `deadline_ms` (of steady_ms(); unset: for ever); a signal ends a wait
  // early. False: then not all was sent, and nothing more can be.
  Result<bool> send(const protocol::Request& request, std::optional<int64_t> deadline_ms);
  // Nothing: no reply until then. The end of the stream is an error.
  Result<std::optional<protocol::Reply>> receive(std::optional<int64_t> deadline_ms);

 private:
  explicit DaemonClient(int descriptor) : descriptor_(descriptor) {}
  Result<bool> wait_for(short events, std::optional<int64_t> deadline_ms);
  Result<bool> read_some();

  int descriptor_ = -1;
  protocol::ReplyReader reader_;
};

}  // namespace glmd
