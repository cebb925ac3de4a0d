// The address of a Unix socket: a path, as long as one may be. Abstract sockets have neither owner
// nor mode, so their notation, @name, is refused: taken for a path it would be a file in whatever
// folder is the current one.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "platform/result.h"

namespace glmd {

// A path that cannot be one fails with `kind`, by whose mistake it is; the message does not name
// it.
Result<sockaddr_un> unix_address(const std::string& path, ErrorKind kind);

// As connect() and bind() take it.
inline const sockaddr* base_of(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

}  // namespace glmd
