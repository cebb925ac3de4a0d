#include "client/daemon_client.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "platform/file.h"
#include "platform/unix_socket.h"

namespace glmd {
namespace {

Error connect_error(const std::string& path) {
  if (errno == EAGAIN) return error(ErrorKind::busy, "connect to {}: too many wait there", path);
  const bool is_denied = errno == EACCES || errno == EPERM;
  return error(is_denied ? ErrorKind::denied : ErrorKind::unavailable, "connect to {}: {}", path,
               std::strerror(errno));
}

}  // namespace

Result<DaemonClient> DaemonClient::connect(const std::string& socket_path) {
  const sockaddr_un address = TRY_CONTEXT(unix_address(socket_path, ErrorKind::usage), socket_path);
  DaemonClient client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (client.descriptor_ < 0) return error(ErrorKind::io, "socket: {}", std::strerror(errno));
  if (::connect(client.descriptor_, base_of(address), sizeof(address)) != 0)
    return connect_error(socket_path);
  return client;
}

DaemonClient::DaemonClient(DaemonClient&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), reader_(std::move(other.reader_)) {}

DaemonClient& DaemonClient::operator=(DaemonClient&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(reader_, other.reader_);
  return *this;
}

DaemonClient::~DaemonClient() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<bool> DaemonClient::send(const protocol::Request& request,
                                std::optional<int64_t> deadline_ms) {
  const std::string text = protocol::format_request(request);
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t count = ::send(descriptor_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<size_t>(count);
      continue;
    }
    if (errno == EPIPE || errno == ECONNRESET)
      return true;  // what it said last is still to be read
    if (errno != EAGAIN && errno != EINTR) {
      return error(ErrorKind::unavailable, "send to glmd: {}", std::strerror(errno));
    }
    const bool can_send = TRY(wait_for(POLLOUT, deadline_ms));
    if (!can_send) return false;
  }
  return true;
}

Result<std::optional<protocol::Reply>> DaemonClient::receive(std::optional<int64_t> deadline_ms) {
  while (true) {
    if (auto item = reader_.next()) {
      if (auto* fault = std::get_if<protocol::Fault>(&*item)) {
        return error(ErrorKind::protocol, "glmd sent what is not understood: {}", fault->message);
      }
      return std::optional(std::get<protocol::Reply>(std::move(*item)));
    }
    const bool has_bytes = TRY(wait_for(POLLIN, deadline_ms));
    if (!has_bytes) return std::optional<protocol::Reply>();
    const bool has_more = TRY(read_some());
    if (!has_more) return error(ErrorKind::unavailable, "glmd closed the connection");
  }
}

Result<bool> DaemonClient::wait_for(short events, std::optional<int64_t> deadline_ms) {
  const int count = poll_until(descriptor_, events, deadline_ms);
  if (count < 0 && errno != EINTR) return error(ErrorKind::io, "poll: {}", std::strerror(errno));
  return count > 0;
}

Result<bool> DaemonClient::read_some() {
  std::array<char, 65536> bytes;
  const ssize_t count = ::recv(descriptor_, bytes.data(), bytes.size(), 0);
  if (count > 0) {
    reader_.feed({bytes.data(), static_cast<size_t>(count)});
    return true;
  }
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  return false;  // an end or a reset: glmd is gone either way
}

}  // namespace glmd
