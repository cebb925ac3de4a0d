#include "platform/unix_socket.h"

namespace glmd {

Result<sockaddr_un> unix_address(const std::string& path, ErrorKind kind) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  constexpr size_t bytes_max = sizeof(address.sun_path) - 1;
  if (path.empty() || path.size() > bytes_max) {
    return error(kind, "a socket path has 1 to {} bytes, got {}", bytes_max, path.size());
  }
  if (path.front() == '@') {
    return error(kind,
                 "wanted the path of a socket, got the notation of an abstract one, which anybody "
                 "may connect to; a file of that name is ./{}",
                 path);
  }
  path.copy(address.sun_path, path.size());
  return address;
}

}  // namespace glmd
