// What each verb of a client does. A handler answers through the connection or sends a command; it
// never waits. Thread: loop.
#pragma once

#include "protocol/request.h"

namespace glmd {

class Connection;
class Server;

void handle_request(Server& server, Connection& connection, protocol::Request request);

}  // namespace glmd
