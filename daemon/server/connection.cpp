#include "server/connection.h"

#include <poll.h>

#include <array>
#include <memory>
#include <utility>

#include "server/server.h"
#include "server/verbs.h"

namespace glmd {
namespace {

using protocol::ErrorCode;
using Waiting = protocol::LineReader::Waiting;

// Reads land here: one loop, one read at a time, nothing kept.
std::array<char, 65536> read_buffer;

struct WriteRequest {
  uv_write_t request{};
  std::string text;
};

}  // namespace

Connection::Connection(Server& server, uint64_t id, UvHandle<uv_pipe_t> pipe, Peer peer, Role role)
    : server_(server),
      id_(id),
      pipe_(std::move(pipe)),
      peer_(std::move(peer)),
      role_(role),
      reader_(server.options().limits) {
  pipe_.get()->data = this;
}

void Connection::start() {
  is_reading_ = true;
  waiting_since_ms_ = server_.now_ms();
  uv_read_start(
      pipe_.stream(),
      [](uv_handle_t*, size_t, uv_buf_t* buffer) {
        *buffer = uv_buf_init(read_buffer.data(), static_cast<unsigned>(read_buffer.size()));
      },
      [](uv_stream_t* stream, ssize_t count, const uv_buf_t* buffer) {
        if (stream->data) static_cast<Connection*>(stream->data)->on_read(count, buffer->base);
      });
}

std::vector<uint64_t> Connection::client_ids() const {
  std::vector<uint64_t> ids;
  for (const auto& [client_id, request] : requests_) ids.push_back(client_id);
  return ids;
}

void Connection::add_request(uint64_t client_id, RequestId id, int64_t prompt_bytes) {
  requests_[client_id] = {.id = id, .prompt_bytes = prompt_bytes};
  input_bytes_ += prompt_bytes;
  if (is_held_ && server_.state() != ServerState::loading) server_.send(Hold{id, true});
}

bool Connection::cancel_request(uint64_t client_id) {
  const auto found = requests_.find(client_id);
  if (found == requests_.end()) return false;
  LiveRequest& request = found->second;
  if (!std::exchange(request.is_cancelled, true)) server_.send(Cancel{request.id});
  return true;
}

bool Connection::stop_request(uint64_t client_id) {
  const auto found = requests_.find(client_id);
  if (found == requests_.end()) return false;
  LiveRequest& request = found->second;
  if (!std::exchange(request.is_stopped, true)) server_.send(Stop{request.id});
  return true;
}

void Connection::end_request(uint64_t client_id, const protocol::Reply& last) {
  const auto found = requests_.find(client_id);
  if (found == requests_.end()) return;
  input_bytes_ -= found->second.prompt_bytes;
  requests_.erase(found);
  send(last);
  close_if_finished();
}

void Connection::send(const protocol::Reply& reply) {
  write(protocol::format_reply(reply));
}

void Connection::fail_requests(ErrorCode code, const std::string& message) {
  for (const auto& [client_id, request] : std::exchange(requests_, {})) {
    server_.abandon_request(request.id);
    write(protocol::format_reply(protocol::Failed{client_id, code, 0, message}));
  }
  input_bytes_ = 0;
}

void Connection::refuse(ErrorCode code, const std::string& message,
                        std::optional<uint64_t> client_id) {
  send(protocol::Failed{client_id, code, 0, message});
  close_after_output();
}

void Connection::tick(int64_t now_ms) {
  if (is_closed()) return;
  const protocol::Limits& limits = server_.options().limits;
  if (has_input_ended_ && is_hung_up()) return abandon();
  if (output_bytes_ > 0 && now_ms - output_moved_ms_ > limits.output_stall_ms) {
    if (requests_.empty()) return abandon();  // it had its chance to read why
    output_moved_ms_ = now_ms;
    return fail_requests(ErrorCode::slow_client, "the client does not read");
  }
  if (is_closing_ || has_input_ended_ || !is_reading_) return;
  if (waiting_ == Waiting::line_end && now_ms - waiting_since_ms_ > limits.header_timeout_ms) {
    fail_requests(ErrorCode::cancelled, "the connection closes");
    refuse(ErrorCode::bad_line, "the line did not end in time");
  } else if (waiting_ == Waiting::payload &&
             now_ms - waiting_since_ms_ > limits.payload_timeout_ms) {
    const auto fault = reader_.finish();
    const bool is_duplicate = fault && fault->id && has_request(*fault->id);
    fail_requests(ErrorCode::cancelled, "the connection closes");
    refuse(ErrorCode::bad_frame, "the payload did not come in time",
           fault && !is_duplicate ? fault->id : std::nullopt);
  }
}

void Connection::on_read(ssize_t count, const char* bytes) {
  if (count == 0 || is_closing_) return;
  if (count == UV_EOF) return on_end_of_input();
  if (count < 0) return abandon();
  take_input({bytes, static_cast<size_t>(count)});
}

void Connection::take_input(std::string_view bytes) {
  if (!is_opening_) {
    reader_.feed(bytes);
    return handle_items();
  }
  opening_ += bytes;
  const auto opening = protocol::judge_opening(opening_);
  if (opening == protocol::Opening::foreign) return abandon();
  if (opening == protocol::Opening::undecided) {
    waiting_ = Waiting::line_end;
    waiting_since_ms_ = server_.now_ms();
    return;
  }
  is_opening_ = false;
  reader_.feed(std::exchange(opening_, {}));
  handle_items();
}

void Connection::handle_items() {
  bool has_moved = false;
  while (!is_closing_ && !is_closed()) {
    auto item = reader_.next();
    if (!item) break;
    has_moved = true;
    coming_bytes_ = 0;
    if (auto* request = std::get_if<protocol::Request>(&*item)) {
      handle_request(server_, *this, std::move(*request));
      continue;
    }
    const auto& fault = std::get<protocol::Fault>(*item);
    if (protocol::closes_connection(fault.code)) {
      fail_requests(ErrorCode::cancelled, "the connection closes");
      send(protocol::Failed{fault.id, fault.code, 0, fault.message});
      return close_after_output();
    }
    // An error with the id of a live request would read as that request's end.
    const bool is_duplicate = fault.id && has_request(*fault.id);
    send(protocol::Failed{is_duplicate ? std::nullopt : fault.id, fault.code, 0, fault.message});
  }
  count_coming();
  const Waiting before = std::exchange(waiting_, reader_.waiting());
  if (has_moved || before != waiting_ || waiting_ == Waiting::payload) {
    waiting_since_ms_ = server_.now_ms();
  }
}

// A prompt takes its room when it is announced, not when it has come.
void Connection::count_coming() {
  const protocol::Submit* submit = reader_.coming();
  if (submit == nullptr || coming_bytes_ > 0 || is_closing_) return;
  if (auto refusal = find_refusal(server_, *this, *submit, reader_.coming_bytes())) {
    reader_.drop_coming();
    send(std::move(*refusal));
  } else {
    coming_bytes_ = reader_.coming_bytes();
  }
}

void Connection::on_end_of_input() {
  uv_read_stop(pipe_.stream());
  is_reading_ = false;
  has_input_ended_ = true;
  // libuv reports a half-close (`printf ... | socat`) and a full close alike; poll tells them
  // apart.
  if (is_hung_up()) return abandon();
  if (is_opening_) reader_.feed(opening_);
  if (const auto fault = reader_.finish()) {
    const bool is_duplicate = fault->id && has_request(*fault->id);
    send(protocol::Failed{is_duplicate ? std::nullopt : fault->id, fault->code, 0, fault->message});
  }
  close_if_finished();
}

bool Connection::is_hung_up() const {
  int descriptor = -1;
  if (uv_fileno(pipe_.base(), &descriptor) != 0) return true;
  pollfd poll_descriptor{descriptor, 0, 0};
  ::poll(&poll_descriptor, 1, 0);
  return (poll_descriptor.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

void Connection::write(std::string text) {
  if (is_closed()) return;
  const int64_t bytes = std::ssize(text);
  if (output_bytes_ == 0) output_moved_ms_ = server_.now_ms();
  output_bytes_ += bytes;
  auto write = std::make_unique<WriteRequest>();
  write->text = std::move(text);
  write->request.data = write.get();
  const uv_buf_t buffer = uv_buf_init(write->text.data(), static_cast<unsigned>(bytes));
  const int status =
      uv_write(&write->request, pipe_.stream(), &buffer, 1, [](uv_write_t* request, int result) {
        const std::unique_ptr<WriteRequest> done(static_cast<WriteRequest*>(request->data));
        auto* connection = static_cast<Connection*>(request->handle->data);
        if (connection) connection->on_written(result, std::ssize(done->text));
      });
  if (status != 0) return abandon();
  static_cast<void>(write.release());  // the callback owns it
  update_flow();
}

void Connection::on_written(int status, int64_t bytes) {
  output_bytes_ -= bytes;
  output_moved_ms_ = server_.now_ms();
  if (status != 0) return abandon();
  update_flow();
  if (output_bytes_ == 0) close_if_finished();
}

void Connection::update_flow() {
  const protocol::Limits& limits = server_.options().limits;
  if (output_bytes_ > limits.output_bytes_max) {
    if (!requests_.empty())
      return fail_requests(ErrorCode::slow_client, "the client does not read");
    if (output_bytes_ > 2 * limits.output_bytes_max) return abandon();
  }
  if (output_bytes_ > limits.output_hold_bytes) set_held(true);
  if (output_bytes_ == 0) set_held(false);
  if (has_input_ended_ || is_closing_) return;
  if (is_reading_ && output_bytes_ > limits.output_stop_reading_bytes) {
    uv_read_stop(pipe_.stream());
    is_reading_ = false;
  } else if (!is_reading_ && output_bytes_ == 0) {
    start();
  }
}

void Connection::engine_is_ready() {
  if (is_held_) tell_held();
}

void Connection::set_held(bool is_held) {
  if (is_held == std::exchange(is_held_, is_held)) return;
  if (server_.state() != ServerState::loading) tell_held();
}

void Connection::tell_held() const {
  for (const auto& [client_id, request] : requests_) server_.send(Hold{request.id, is_held_});
}

void Connection::close_after_output() {
  if (is_closed()) return;
  is_closing_ = true;
  uv_read_stop(pipe_.stream());
  close_if_finished();
}

void Connection::close_if_finished() {
  if (is_closed() || output_bytes_ > 0) return;
  if (is_closing_ || (has_input_ended_ && requests_.empty())) {
    pipe_.reset();
    server_.sweep_later();
  }
}

void Connection::abandon() {
  if (is_closed()) return;
  is_closing_ = true;
  for (const auto& [client_id, request] : std::exchange(requests_, {})) {
    server_.abandon_request(request.id);
  }
  pipe_.reset();
  server_.sweep_later();
}

}  // namespace glmd
