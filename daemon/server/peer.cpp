#include "server/peer.h"

#include <grp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace glmd {
namespace {

// Supplementary groups; none where the kernel is too old to tell.
std::vector<gid_t> read_supplementary_groups(int socket) {
  std::vector<gid_t> groups(64);
  for (int attempt = 0; attempt < 2; ++attempt) {
    socklen_t bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    const int status = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes);
    groups.resize(bytes / sizeof(gid_t));
    if (status == 0) return groups;
    if (errno != ERANGE) return {};  // ERANGE: `bytes` says how much room it needs
  }
  return {};
}

}  // namespace

Result<Peer> read_peer(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return error(ErrorKind::io, "read the peer's credentials: {}", std::strerror(errno));
  }
  Peer peer{credentials.uid, credentials.pid, {credentials.gid}};
  const std::vector<gid_t> groups = read_supplementary_groups(socket);
  peer.groups.insert(peer.groups.end(), groups.begin(), groups.end());
  return peer;
}

Role role_of(const Peer& peer, uid_t own_uid, std::optional<gid_t> admin_group) {
  if (peer.uid == 0 || peer.uid == own_uid) return Role::admin;
  if (!admin_group) return Role::user;
  const bool is_member =
      std::find(peer.groups.begin(), peer.groups.end(), *admin_group) != peer.groups.end();
  return is_member ? Role::admin : Role::user;
}

std::optional<gid_t> find_group(const std::string& name) {
  std::array<char, 16384> buffer{};
  group entry{};
  group* found = nullptr;
  if (getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || !found) {
    return std::nullopt;
  }
  return found->gr_gid;
}

}  // namespace glmd
