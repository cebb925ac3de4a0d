#include "server/verbs.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "platform/json.h"
#include "server/connection.h"
#include "server/server.h"

namespace glmd {
namespace {

using protocol::ErrorCode;

constexpr int64_t retry_soon_ms = 2'000;

PromptFormat prompt_format_of(protocol::Format format) {
  if (format == protocol::Format::chat) return PromptFormat::chat;
  if (format == protocol::Format::tokens) return PromptFormat::tokens;
  return PromptFormat::raw;
}

struct Handler {
  Server& server;
  Connection& connection;

  void operator()(const protocol::Hello&) const {
    connection.send(protocol::HelloOk{protocol::protocol_version,
                                      std::string(to_string(server.state())),
                                      "glmd/" + server.options().version, protocol::line_bytes_max,
                                      server.options().limits.payload_bytes_max});
  }

  void operator()(protocol::Submit& submit) const {
    if (auto refusal = find_refusal(server, connection, submit, std::ssize(submit.payload))) {
      connection.send(std::move(*refusal));
      return;
    }
    Submit command;
    command.format = prompt_format_of(submit.format);
    command.prompt = std::move(submit.payload);
    command.tokens_max = submit.tokens_max;
    command.temperature = submit.temperature;
    command.top_p = submit.top_p;
    command.seed = submit.seed;
    command.stops = std::move(submit.stops);
    command.markup_is_trusted = submit.is_markup_trusted;
    server.submit(connection, submit.id, std::move(command));
  }

  void operator()(const protocol::Cancel& cancel) const {
    for (const uint64_t client_id : cancel.id ? std::vector{*cancel.id} : connection.client_ids()) {
      if (!connection.cancel_request(client_id)) tell_not_found(client_id);
    }
  }

  void operator()(const protocol::Stop& stop) const {
    if (!connection.stop_request(stop.id)) tell_not_found(stop.id);
  }

  void operator()(const protocol::Ping&) const {
    Json answer = Json::object();
    answer.set("state", Json::string(std::string(to_string(server.state()))));
    answer.set("version", Json::string(server.options().version));
    connection.send(protocol::Info{"ping", answer.to_string()});
  }

  void operator()(const protocol::Status&) const {
    connection.send(protocol::Info{"status", server.status_json()});
  }

  void operator()(const protocol::Plan&) const {
    connection.send(protocol::Info{"plan", server.options().plan_json});
  }

  void operator()(const protocol::Doctor&) const {
    connection.send(protocol::Info{"doctor", server.options().doctor_json});
  }

  void tell_not_found(uint64_t client_id) const {
    connection.send(protocol::Failed{client_id, ErrorCode::not_found, 0, ""});
  }
};

}  // namespace

std::optional<protocol::Failed> find_refusal(const Server& server, const Connection& connection,
                                             const protocol::Submit& submit, int64_t prompt_bytes) {
  const protocol::Limits& limits = server.options().limits;
  if (connection.has_request(submit.id)) {
    // With the id it would read as the end of the live request.
    return protocol::Failed{std::nullopt, ErrorCode::duplicate_id, 0,
                            fmt::format("the id {} is still live", submit.id)};
  }
  if (submit.slot != "-") {
    return protocol::Failed{submit.id, ErrorCode::slot_bad, 0, "only the slot - exists"};
  }
  if (submit.is_markup_trusted && connection.role() != Role::admin) {
    return protocol::Failed{submit.id, ErrorCode::denied, 0, "markup=1 is for admins"};
  }
  if (server.state() == ServerState::draining) {
    return protocol::Failed{submit.id, ErrorCode::draining, retry_soon_ms, "glmd is stopping"};
  }
  if (server.state() == ServerState::loading && submit.is_waiting_refused) {
    return protocol::Failed{submit.id, ErrorCode::loading, retry_soon_ms,
                            "the weights are loading"};
  }
  if (connection.request_count() >= limits.live_ids_max) {
    return protocol::Failed{
        submit.id, ErrorCode::queue_full, retry_soon_ms,
        fmt::format("{} live requests on this connection", limits.live_ids_max)};
  }
  if (connection.input_bytes() + prompt_bytes > limits.pending_input_bytes_max) {
    return protocol::Failed{submit.id, ErrorCode::queue_full, retry_soon_ms,
                            "the live prompts of this connection are too large together"};
  }
  if (auto shortage = server.find_shortage(connection, prompt_bytes)) {
    return protocol::Failed{submit.id, ErrorCode::queue_full, retry_soon_ms, std::move(*shortage)};
  }
  return std::nullopt;
}

void handle_request(Server& server, Connection& connection, protocol::Request request) {
  std::visit(Handler{server, connection}, request);
}

}  // namespace glmd
