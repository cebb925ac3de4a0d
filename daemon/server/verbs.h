// What each verb of a client does. A handler answers through the connection or sends a command; it
// never waits. Thread: loop.
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/reply.h"
#include "protocol/request.h"

namespace glmd {

class Connection;
class Server;

// Why this request, whose prompt has or will have so many bytes, cannot be taken, or nothing.
std::optional<protocol::Failed> find_refusal(const Server& server, const Connection& connection,
                                             const protocol::Submit& submit, int64_t prompt_bytes);

void handle_request(Server& server, Connection& connection, protocol::Request request);

}  // namespace glmd
