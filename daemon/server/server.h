// The daemon's sockets: listens, admits, routes commands to the compute thread and events back to
// the connection that asked. Ends by draining: no new requests, running ones finish within a limit.
// Thread: loop (the one that calls run). After run() returns the caller sends Quit and joins the
// compute thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generation/channel.h"
#include "generation/messages.h"
#include "platform/result.h"
#include "protocol/limits.h"
#include "protocol/reply.h"
#include "server/connection.h"
#include "server/service_manager.h"
#include "server/uv_handle.h"

namespace glmd {

struct ServerOptions {
  std::string socket_path;
  bool adopt_sockets = true;        // those systemd passed, if it passed any; otherwise socket_path
  int64_t requests_max = 128;       // live requests, all users together; one user: half of them
  int64_t drain_limit_ms = 60'000;  // from SIGTERM until running requests get their final frame
  std::string version = GLMD_VERSION;
  std::string admin_group = "glm-admin";
  int64_t tick_ms = 250;
  std::string plan_json = "{}", doctor_json = "{}";  // what PLAN and DOCTOR answer
  protocol::Limits limits;
};

// Which file it is, by whatever name.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileIdentity&) const = default;
};

enum class ServerState { loading, ready, draining };
std::string_view to_string(ServerState state);

class Server {
 public:
  static Result<std::unique_ptr<Server>> create(const ServerOptions& options, Channel& channel);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Result<void> run();  // until drained or the engine stopped
  // As SIGTERM, SIGINT and SIGHUP do. At a second call the running requests get their final frame
  // at once, a third does not wait for anybody to read it. Thread: any.
  void request_drain();

  // For connections and verbs.
  const ServerOptions& options() const { return options_; }
  ServerState state() const { return state_; }
  int64_t now_ms() const;
  // Why a request with such a prompt has to wait for another day, or nothing. Prompts that are
  // coming on other connections count.
  std::optional<std::string> find_shortage(const Connection& connection,
                                           int64_t prompt_bytes) const;
  std::string status_json() const;
  void submit(Connection& connection, uint64_t client_id, Submit command);
  void send(Command command) { channel_.send(std::move(command)); }
  void abandon_request(RequestId id);  // cancels; its events go nowhere from now on
  void sweep_later() { needs_sweep_ = true; }

 private:
  // Lives until the engine let go, even when its connection did not.
  struct Route {
    std::optional<uint64_t> connection_id;
    uid_t uid = 0;
    uint64_t client_id = 0;
    int64_t prompt_bytes = 0;
  };

  Server(const ServerOptions& options, Channel& channel);
  Result<void> open_loop();
  Result<void> listen_anywhere();
  Result<void> listen_at_path();
  Result<void> listen_on(int descriptor);
  void close_listeners();
  void remove_own_socket();

  void on_connection(uv_stream_t* listener);
  void admit(UvHandle<uv_pipe_t> pipe);
  void on_wake();
  void on_tick();
  void on_signal();
  void sweep();
  void begin_drain();
  void finish_drain_if_done();
  void stop_loop();

  void handle(const Queued& event);
  void handle(const Accepted& event);
  void handle(const PrefillProgress& event);
  void handle(Text& event);
  void handle(const Done& event);
  void handle(const Failed& event);
  void handle(StatusSnapshot& event);
  void handle(const EngineReady& event);
  void handle(const EngineStopped& event);
  void forward(RequestId id, const auto& make_reply);
  void finish(RequestId id, const auto& make_reply);
  Connection* find_connection(const Route& route);
  std::string status_line() const;

  ServerOptions options_;
  Channel& channel_;
  ServiceManager service_manager_;
  ServerState state_ = ServerState::loading;
  std::unique_ptr<uv_loop_t> loop_;
  std::vector<UvHandle<uv_pipe_t>> listeners_;
  UvHandle<uv_async_t> wake_;
  UvHandle<uv_timer_t> timer_;
  UvHandle<uv_prepare_t> prepare_;
  UvHandle<uv_signal_t> terminate_, interrupt_, hang_up_;
  std::optional<FileIdentity> own_socket_;  // made by us at socket_path
  bool needs_sweep_ = false;
  std::atomic<int> drain_requests_{0};
  int drains_seen_ = 0;
  int64_t drain_deadline_ms_ = 0;
  bool has_drain_expired_ = false;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::map<RequestId, Route> routes_;
  uint64_t next_connection_id_ = 1;
  RequestId next_request_id_ = 1;
  int64_t prompt_bytes_ = 0;
  int64_t accepted_count_ = 0, finished_count_ = 0, failed_count_ = 0;
  std::optional<gid_t> admin_group_;
  std::string snapshot_json_ = "null";
  std::string engine_status_line_;
  std::optional<Error> failure_;
};

}  // namespace glmd
