#include "server/server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include <variant>

#include "platform/json.h"
#include "platform/log.h"
#include "platform/unix_socket.h"

namespace glmd {
namespace {

using protocol::ErrorCode;

constexpr int backlog = 64;
constexpr int path_tries = 500;           // 10 ms apart: who holds the lock for 5 s is stuck
constexpr int64_t last_words_ms = 2'000;  // for final frames to leave after the drain limit

Error system_error(std::string_view what) {
  return error(errno == EACCES || errno == EPERM ? ErrorKind::denied : ErrorKind::io, "{}: {}",
               what, std::strerror(errno));
}

// Why the socket cannot be had: no folder, no room, a read-only file system.
Error place_error(std::string_view what) {
  Error failure = system_error(what);
  if (failure.kind == ErrorKind::io) failure.kind = ErrorKind::unavailable;
  return failure;
}

std::optional<FileIdentity> identity_of(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return std::nullopt;
  return FileIdentity{status.st_dev, status.st_ino};
}

// Held while a path is examined and taken until somebody listens there: of two daemons, the second
// finds the first one listening. A file beside the socket, that goes with its holder; of a holder
// that was killed it stays, unlocked.
class PathLock {
 public:
  static Result<PathLock> take(const std::string& socket_path) {
    PathLock lock(socket_path + ".lock");
    for (int i = 0; i < path_tries; ++i) {
      lock.descriptor_ =
          ::open(lock.path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (lock.descriptor_ < 0) return place_error("open " + lock.path_);
      const bool is_locked = ::flock(lock.descriptor_, LOCK_EX | LOCK_NB) == 0;
      if (is_locked && lock.is_in_place()) return lock;
      if (!is_locked && errno != EWOULDBLOCK) return place_error("lock " + lock.path_);
      ::close(std::exchange(lock.descriptor_, -1));
      ::poll(nullptr, 0, 10);
    }
    return error(ErrorKind::busy, "another daemon is about to listen there: {} is locked",
                 lock.path_);
  }
  PathLock(PathLock&& other) noexcept
      : path_(other.path_), descriptor_(std::exchange(other.descriptor_, -1)) {}
  PathLock& operator=(PathLock&&) = delete;
  ~PathLock() {
    if (descriptor_ < 0) return;
    // Before it is let go: who gets the lock then sees that it is not in place.
    ::unlink(path_.c_str());
    ::close(descriptor_);
  }

 private:
  explicit PathLock(std::string path) : path_(std::move(path)) {}

  bool is_in_place() const {
    struct stat status {};
    if (fstat(descriptor_, &status) != 0) return false;
    return identity_of(path_) == FileIdentity{status.st_dev, status.st_ino};
  }

  std::string path_;
  int descriptor_ = -1;
};

// A socket file without a listener is left over from a crash and may go; a live one is somebody's.
Result<void> remove_stale_socket(const std::string& path, const sockaddr_un& address) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode)) return error(ErrorKind::config, "exists and is no socket");
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return system_error("socket");
  const bool is_stale =
      ::connect(probe, base_of(address), sizeof(address)) != 0 && errno == ECONNREFUSED;
  ::close(probe);
  if (!is_stale) return error(ErrorKind::busy, "another daemon listens there");
  if (::unlink(path.c_str()) != 0) return place_error("unlink");
  return {};
}

// Shells start what runs in the background with SIGINT ignored, nohup all with SIGHUP.
bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Mode 0660 from the first moment: the mask is narrowed around bind.
Result<int> bind_socket(const sockaddr_un& address) {
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return system_error("socket");
  const mode_t mask = ::umask(0117);
  const int status = ::bind(descriptor, base_of(address), sizeof(address));
  ::umask(mask);
  if (status != 0) {
    Error failure = place_error("bind");
    ::close(descriptor);
    return failure;
  }
  return descriptor;
}

// Without a path there is neither owner nor mode.
bool is_abstract(int descriptor) {
  sockaddr_un address{};
  socklen_t bytes = sizeof(address);
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return false;
  return address.sun_path[0] == 0;
}

}  // namespace

std::string_view to_string(ServerState state) {
  if (state == ServerState::loading) return "loading";
  return state == ServerState::ready ? "ready" : "draining";
}

Result<std::unique_ptr<Server>> Server::create(const ServerOptions& options, Channel& channel) {
  std::unique_ptr<Server> server(new Server(options, channel));
  TRY(server->open_loop());
  TRY(server->listen_anywhere());
  channel.set_wake_loop([wake = server->wake_.get()] { uv_async_send(wake); });
  return server;
}

Server::Server(const ServerOptions& options, Channel& channel)
    : options_(options), channel_(channel), admin_group_(find_group(options.admin_group)) {}

Server::~Server() {
  channel_.set_wake_loop({});
  connections_.clear();
  remove_own_socket();
  close_listeners();
  wake_.reset();
  timer_.reset();
  prepare_.reset();
  terminate_.reset();
  interrupt_.reset();
  hang_up_.reset();
  if (!loop_) return;
  uv_run(loop_.get(), UV_RUN_DEFAULT);  // the close callbacks
  CHECK(uv_loop_close(loop_.get()) == 0);
}

Result<void> Server::open_loop() {
  // A peer that hung up is an error of write(), not of the process.
  ::signal(SIGPIPE, SIG_IGN);
  // Nothing of ours, and no reason to end without saving anything.
  ::signal(SIGUSR1, SIG_IGN);
  ::signal(SIGUSR2, SIG_IGN);
  auto loop = std::make_unique<uv_loop_t>();
  if (const int status = uv_loop_init(loop.get()); status != 0) {
    return error(ErrorKind::io, "event loop: {}", uv_strerror(status));
  }
  loop_ = std::move(loop);
  wake_ = UvHandle<uv_async_t>(this);
  uv_async_init(loop_.get(), wake_.get(), [](uv_async_t* handle) {
    if (handle->data) static_cast<Server*>(handle->data)->on_wake();
  });
  timer_ = UvHandle<uv_timer_t>(this);
  uv_timer_init(loop_.get(), timer_.get());
  prepare_ = UvHandle<uv_prepare_t>(this);
  uv_prepare_init(loop_.get(), prepare_.get());
  for (auto* handle : {&terminate_, &interrupt_, &hang_up_}) {
    *handle = UvHandle<uv_signal_t>(this);
    uv_signal_init(loop_.get(), handle->get());
  }
  // Before anybody can connect: a signal that comes early waits for run().
  const auto on_signal = [](uv_signal_t* handle, int) {
    if (handle->data) static_cast<Server*>(handle->data)->on_signal();
  };
  uv_signal_start(terminate_.get(), on_signal, SIGTERM);
  if (!is_ignored(SIGINT)) uv_signal_start(interrupt_.get(), on_signal, SIGINT);
  if (!is_ignored(SIGHUP)) uv_signal_start(hang_up_.get(), on_signal, SIGHUP);
  return {};
}

Result<void> Server::listen_anywhere() {
  const int adopted_count = options_.adopt_sockets ? sd_listen_fds(1) : 0;
  if (adopted_count < 0) {
    return error(ErrorKind::config, "adopt sockets: {}", std::strerror(-adopted_count));
  }
  for (int i = 0; i < adopted_count; ++i) {
    const int descriptor = SD_LISTEN_FDS_START + i;
    if (sd_is_socket(descriptor, AF_UNIX, SOCK_STREAM, 1) <= 0) {
      return error(ErrorKind::config, "adopt descriptor {}: no listening Unix stream socket",
                   descriptor);
    }
    if (is_abstract(descriptor)) {
      return error(ErrorKind::config,
                   "adopt descriptor {}: wanted a socket with a path, got an abstract one, which "
                   "anybody may connect to",
                   descriptor);
    }
    TRY(listen_on(descriptor));
  }
  if (adopted_count == 0) {
    TRY_CONTEXT(listen_at_path(), "listen at " + options_.socket_path);
  }
  return {};
}

Result<void> Server::listen_at_path() {
  const sockaddr_un address = TRY(unix_address(options_.socket_path, ErrorKind::config));
  const PathLock lock = TRY(PathLock::take(options_.socket_path));
  TRY(remove_stale_socket(options_.socket_path, address));
  const int descriptor = TRY(bind_socket(address));
  own_socket_ = identity_of(options_.socket_path);
  return listen_on(descriptor);
}

Result<void> Server::listen_on(int descriptor) {
  UvHandle<uv_pipe_t> listener(this);
  uv_pipe_init(loop_.get(), listener.get(), 0);
  int status = uv_pipe_open(listener.get(), descriptor);
  if (status == 0) {
    status = uv_listen(listener.stream(), backlog, [](uv_stream_t* stream, int result) {
      if (stream->data && result == 0) static_cast<Server*>(stream->data)->on_connection(stream);
    });
  }
  if (status != 0) return error(ErrorKind::io, "listen: {}", uv_strerror(status));
  listeners_.push_back(std::move(listener));
  return {};
}

void Server::close_listeners() {
  listeners_.clear();
}

// Who removed it may have given its path to another daemon. While we listen, our inode is not used
// again.
void Server::remove_own_socket() {
  if (own_socket_ && identity_of(options_.socket_path) == own_socket_) {
    ::unlink(options_.socket_path.c_str());
  }
}

Result<void> Server::run() {
  const auto tick_ms = static_cast<uint64_t>(options_.tick_ms);
  uv_timer_start(
      timer_.get(),
      [](uv_timer_t* handle) {
        if (handle->data) static_cast<Server*>(handle->data)->on_tick();
      },
      tick_ms, tick_ms);
  uv_prepare_start(prepare_.get(), [](uv_prepare_t* handle) {
    if (handle->data) static_cast<Server*>(handle->data)->sweep();
  });
  on_wake();  // what the engine said before we ran
  on_tick();
  uv_run(loop_.get(), UV_RUN_DEFAULT);
  if (failure_) return *failure_;
  return {};
}

void Server::request_drain() {
  ++drain_requests_;
  uv_async_send(wake_.get());
}

int64_t Server::now_ms() const {
  return static_cast<int64_t>(uv_now(loop_.get()));
}

std::optional<std::string> Server::find_shortage(const Connection& connection,
                                                 int64_t prompt_bytes) const {
  const int64_t bytes_max = options_.limits.queued_input_bytes_max;
  int64_t bytes = prompt_bytes_ + prompt_bytes;
  int64_t user_requests = 0, user_bytes = prompt_bytes;
  for (const auto& [id, route] : routes_) {
    if (route.uid != connection.uid()) continue;
    ++user_requests;
    user_bytes += route.prompt_bytes;
  }
  for (const auto& [id, other] : connections_) {
    if (other.get() == &connection) continue;
    bytes += other->coming_bytes();
    if (other->uid() == connection.uid()) user_bytes += other->coming_bytes();
  }
  if (std::ssize(routes_) >= options_.requests_max) {
    return fmt::format("{} live requests, as many as there may be", options_.requests_max);
  }
  if (bytes > bytes_max) {
    return fmt::format("the live prompts of all users have {} bytes at most", bytes_max);
  }
  // One user leaves half to the others.
  const int64_t user_requests_max = std::max<int64_t>(1, options_.requests_max / 2);
  if (user_requests >= user_requests_max) {
    return fmt::format("{} live requests of this user, as many as one may have", user_requests_max);
  }
  if (user_bytes > bytes_max / 2) {
    return fmt::format("the live prompts of one user have {} bytes at most", bytes_max / 2);
  }
  return std::nullopt;
}

std::string Server::status_json() const {
  Json requests = Json::object();
  requests.set("live", Json::integer(std::ssize(routes_)));
  requests.set("max", Json::integer(options_.requests_max));
  requests.set("accepted", Json::integer(accepted_count_));
  requests.set("done", Json::integer(finished_count_));
  requests.set("failed", Json::integer(failed_count_));
  Json status = Json::object();
  status.set("version", Json::string(options_.version));
  status.set("state", Json::string(std::string(to_string(state_))));
  status.set("status", Json::string(status_line()));
  status.set("connections", Json::integer(std::ssize(connections_)));
  status.set("requests", std::move(requests));
  std::string text = status.to_string();
  text.pop_back();  // the engine's own object goes in as it is
  return text + ",\"engine\":" + snapshot_json_ + "}";
}

void Server::submit(Connection& connection, uint64_t client_id, Submit command) {
  command.id = next_request_id_++;
  const int64_t bytes = std::ssize(command.prompt);
  routes_[command.id] = {connection.id(), connection.uid(), client_id, bytes};
  prompt_bytes_ += bytes;
  ++accepted_count_;
  const RequestId id = command.id;
  send(std::move(command));
  connection.add_request(client_id, id, bytes);
}

void Server::abandon_request(RequestId id) {
  const auto found = routes_.find(id);
  if (found == routes_.end()) return;
  found->second.connection_id.reset();
  send(Hold{id, false});
  send(Cancel{id});
}

void Server::on_connection(uv_stream_t* listener) {
  UvHandle<uv_pipe_t> pipe(nullptr);
  uv_pipe_init(loop_.get(), pipe.get(), 0);
  if (uv_accept(listener, pipe.stream()) == 0) admit(std::move(pipe));
}

void Server::admit(UvHandle<uv_pipe_t> pipe) {
  int descriptor = -1;
  uv_fileno(pipe.base(), &descriptor);
  auto peer = read_peer(descriptor);
  if (!peer.ok()) {
    log_warning("a connection without credentials is closed: {}, continuing", peer.error().message);
    return;
  }
  sweep();  // who closed in this turn of the loop counts no more
  const uid_t uid = peer.value().uid;
  const auto count = std::count_if(connections_.begin(), connections_.end(),
                                   [&](const auto& entry) { return entry.second->uid() == uid; });
  const Role role = role_of(peer.value(), geteuid(), admin_group_);
  const uint64_t id = next_connection_id_++;
  auto& connection = connections_[id] =
      std::make_unique<Connection>(*this, id, std::move(pipe), std::move(peer).value(), role);
  if (count >= options_.limits.connections_per_uid_max) {
    connection->refuse(ErrorCode::queue_full,
                       fmt::format("too many connections of this user: at most {}",
                                   options_.limits.connections_per_uid_max));
  } else {
    connection->start();
  }
}

void Server::on_wake() {
  while (drains_seen_ < drain_requests_) {
    ++drains_seen_;
    on_signal();
  }
  for (Event& event : channel_.take_events()) {
    std::visit([this](auto& value) { handle(value); }, event);
  }
  finish_drain_if_done();
}

void Server::on_tick() {
  const int64_t now = now_ms();
  for (auto& [id, connection] : connections_) connection->tick(now);
  ServiceManager::Progress progress;
  progress.state = state_ == ServerState::loading ? ServiceManager::State::loading
                   : state_ == ServerState::ready ? ServiceManager::State::ready
                                                  : ServiceManager::State::draining;
  progress.heartbeat = channel_.heartbeat();
  progress.is_idle = channel_.is_idle();
  progress.status_line = status_line();
  service_manager_.tick(now, progress);
  finish_drain_if_done();
}

void Server::on_signal() {
  if (state_ != ServerState::draining) return begin_drain();
  if (has_drain_expired_) return stop_loop();
  log_info("asked twice to stop: running requests end now");
  drain_deadline_ms_ = now_ms();
  finish_drain_if_done();
}

void Server::sweep() {
  if (!std::exchange(needs_sweep_, false)) return;
  std::erase_if(connections_, [](const auto& entry) { return entry.second->is_closed(); });
  finish_drain_if_done();
}

void Server::begin_drain() {
  log_info("draining {} live requests", routes_.size());
  state_ = ServerState::draining;
  drain_deadline_ms_ = now_ms() + options_.drain_limit_ms;
  service_manager_.tell_stopping();
  send(Drain{});
  // systemd keeps its sockets open: new clients wait there for the next daemon. Ours would be
  // refused, so it stays and answers DRAINING.
  if (!own_socket_) close_listeners();
  finish_drain_if_done();
}

void Server::finish_drain_if_done() {
  if (state_ != ServerState::draining) return;
  const bool is_late = now_ms() >= drain_deadline_ms_;
  if (is_late && !has_drain_expired_) {
    has_drain_expired_ = true;
    for (auto& [id, connection] : connections_) {
      connection->fail_requests(ErrorCode::draining, "glmd stops before this request is done");
    }
  }
  const bool has_live = std::any_of(routes_.begin(), routes_.end(),
                                    [](const auto& entry) { return entry.second.connection_id; });
  const bool has_output = std::any_of(connections_.begin(), connections_.end(),
                                      [](const auto& entry) { return entry.second->has_output(); });
  const bool is_out_of_time = now_ms() >= drain_deadline_ms_ + last_words_ms;
  if ((!has_live && !has_output) || is_out_of_time) stop_loop();
}

void Server::stop_loop() {
  uv_stop(loop_.get());
}

Connection* Server::find_connection(const Route& route) {
  if (!route.connection_id) return nullptr;
  const auto found = connections_.find(*route.connection_id);
  return found == connections_.end() ? nullptr : found->second.get();
}

void Server::forward(RequestId id, const auto& make_reply) {
  const auto found = routes_.find(id);
  if (found == routes_.end()) return;
  if (Connection* connection = find_connection(found->second)) {
    connection->send(make_reply(found->second.client_id));
  }
}

void Server::finish(RequestId id, const auto& make_reply) {
  const auto found = routes_.find(id);
  if (found == routes_.end()) return;
  const Route route = found->second;
  routes_.erase(found);
  prompt_bytes_ -= route.prompt_bytes;
  if (Connection* connection = find_connection(route)) {
    connection->end_request(route.client_id, make_reply(route.client_id));
  }
}

void Server::handle(const Queued& event) {
  forward(event.id, [&](uint64_t id) { return protocol::Queued{id, event.position}; });
}

void Server::handle(const Accepted& event) {
  forward(event.id, [&](uint64_t id) {
    return protocol::Accept{id, event.slot, event.prompt_tokens, event.cached_tokens};
  });
}

void Server::handle(const PrefillProgress& event) {
  forward(event.id, [&](uint64_t id) {
    return protocol::Prefill{id, event.done_tokens, event.prompt_tokens};
  });
}

void Server::handle(Text& event) {
  forward(event.id, [&](uint64_t id) {
    return protocol::Data{id, event.is_thought, std::move(event.text)};
  });
}

void Server::handle(const Done& event) {
  ++finished_count_;
  finish(event.id, [&](uint64_t id) {
    return protocol::Done{id,
                          event.reason,
                          event.prompt_tokens,
                          event.cached_tokens,
                          event.completion_tokens,
                          event.seed,
                          event.first_token_ms,
                          event.tokens_per_second};
  });
}

void Server::handle(const Failed& event) {
  ++failed_count_;
  finish(event.id, [&](uint64_t id) {
    ErrorCode code = protocol::error_code_from(event.code);
    if (code == ErrorCode::unknown) code = ErrorCode::internal;
    std::string message = event.message;
    if (code == ErrorCode::cancelled && message.empty()) {
      message =
          fmt::format("prompt={} completion={}", event.prompt_tokens, event.completion_tokens);
    }
    return protocol::Failed{id, code, event.retry_ms, std::move(message)};
  });
}

void Server::handle(StatusSnapshot& event) {
  const auto json = parse_json(event.json, "status snapshot");
  if (!json.ok()) return;
  snapshot_json_ = std::move(event.json);
  if (!json.value().is_object()) return;
  const Json* line = json.value().find("status");
  engine_status_line_ = line && line->is_string() ? line->as_string() : "";
}

void Server::handle(const EngineReady&) {
  if (state_ != ServerState::loading) return;
  state_ = ServerState::ready;
  for (auto& [id, connection] : connections_) connection->engine_is_ready();
  log_info("ready");
  service_manager_.tell_ready();
}

void Server::handle(const EngineStopped& event) {
  for (auto& [id, connection] : connections_) {
    connection->fail_requests(ErrorCode::engine, "the engine stopped: " + event.error);
  }
  routes_.clear();
  if (!event.error.empty()) failure_ = error(ErrorKind::internal, "engine: {}", event.error);
  if (state_ != ServerState::draining) service_manager_.tell_stopping();
  state_ = ServerState::draining;
  drain_deadline_ms_ = now_ms();  // only last words remain
}

std::string Server::status_line() const {
  if (state_ == ServerState::draining) return fmt::format("draining {}", routes_.size());
  if (!engine_status_line_.empty()) return engine_status_line_;
  if (state_ == ServerState::loading) return "loading weights";
  return fmt::format("ready, {} active", routes_.size());
}

}  // namespace glmd
