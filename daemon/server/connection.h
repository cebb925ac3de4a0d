// One client: its bytes in, its frames out, the requests it has alive. What it does not read fills
// its own budget: first its sessions are held, then they end; nobody else waits. Thread: loop.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generation/messages.h"
#include "protocol/reply.h"
#include "protocol/request.h"
#include "server/peer.h"
#include "server/uv_handle.h"

namespace glmd {

class Server;

class Connection {
 public:
  Connection(Server& server, uint64_t id, UvHandle<uv_pipe_t> pipe, Peer peer, Role role);
  void start();

  uint64_t id() const { return id_; }
  uid_t uid() const { return peer_.uid; }
  Role role() const { return role_; }
  bool is_closed() const { return !pipe_; }
  bool has_output() const { return !is_closed() && output_bytes_ > 0; }

  bool has_request(uint64_t client_id) const { return requests_.contains(client_id); }
  std::vector<uint64_t> client_ids() const;
  int64_t request_count() const { return std::ssize(requests_); }
  int64_t input_bytes() const { return input_bytes_; }
  int64_t coming_bytes() const { return coming_bytes_; }  // of the prompt that is being read

  void add_request(uint64_t client_id, RequestId id, int64_t prompt_bytes);
  // The engine is told once: however often a client repeats itself, no queue grows. False where no
  // such request is live.
  bool cancel_request(uint64_t client_id);
  bool stop_request(uint64_t client_id);
  // The frame is the request's last one (DONE or ERROR).
  void end_request(uint64_t client_id, const protocol::Reply& last);
  void send(const protocol::Reply& reply);
  void engine_is_ready();  // until then it makes nothing that could be held
  // Every live request ends with this code and is cancelled.
  void fail_requests(protocol::ErrorCode code, const std::string& message);
  // Says why, then closes. The id is that of a request whose payload will not be read.
  void refuse(protocol::ErrorCode code, const std::string& message,
              std::optional<uint64_t> client_id = std::nullopt);

  void tick(int64_t now_ms);  // timeouts

 private:
  struct LiveRequest {
    RequestId id = 0;
    int64_t prompt_bytes = 0;
    bool is_cancelled = false, is_stopped = false;  // as far as the client is concerned
  };

  void on_read(ssize_t count, const char* bytes);
  void on_written(int status, int64_t bytes);
  void on_end_of_input();
  void take_input(std::string_view bytes);
  void handle_items();
  void count_coming();
  void write(std::string text);
  void update_flow();
  void set_held(bool is_held);
  void tell_held() const;
  void close_after_output();
  void close_if_finished();
  void abandon();  // the peer is gone: cancel everything, close
  bool is_hung_up() const;

  Server& server_;
  uint64_t id_;
  UvHandle<uv_pipe_t> pipe_;
  Peer peer_;
  Role role_;
  protocol::RequestReader reader_;
  std::string opening_;  // the first bytes, until they are known to be ours
  bool is_opening_ = true;
  std::map<uint64_t, LiveRequest> requests_;  // by the client's id
  int64_t input_bytes_ = 0, coming_bytes_ = 0;
  int64_t output_bytes_ = 0;  // given to libuv, not yet taken by the kernel
  bool is_held_ = false;
  bool is_reading_ = false;
  bool has_input_ended_ = false;
  bool is_closing_ = false;
  protocol::LineReader::Waiting waiting_ = protocol::LineReader::Waiting::nothing;
  int64_t waiting_since_ms_ = 0;  // a line began, or a payload made progress
  int64_t output_moved_ms_ = 0;
};

}  // namespace glmd
