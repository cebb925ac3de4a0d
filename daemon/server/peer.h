// Who is at the other end of a socket, as the kernel saw it when they connected.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "platform/result.h"

namespace glmd {

struct Peer {
  uid_t uid = 0;
  pid_t pid = 0;
  std::vector<gid_t> groups;  // primary first
};

enum class Role { user, admin };

Result<Peer> read_peer(int socket);

// Root, ourselves and members of the admin group are admins. Who may connect at all is the socket's
// mode.
Role role_of(const Peer& peer, uid_t own_uid, std::optional<gid_t> admin_group);

std::optional<gid_t> find_group(const std::string& name);

}  // namespace glmd
