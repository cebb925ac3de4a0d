#include "generation/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "platform/check.h"
#include "platform/log.h"
#include "platform/random.h"

namespace glmd {
namespace {

constexpr int64_t status_interval_ns = 200'000'000;
constexpr int64_t look_ahead_interval_ns = 60'000'000'000;

// A vocabulary is padded with ids that are no token.
std::vector<uint8_t> ids_with_a_token(const Tokenizer* tokenizer, int64_t vocabulary) {
  std::vector<uint8_t> is_allowed;
  if (tokenizer == nullptr) return is_allowed;
  for (int64_t id = 0; id < vocabulary; ++id) {
    is_allowed.push_back(tokenizer->has_token(static_cast<int32_t>(id)) ? 1 : 0);
  }
  return is_allowed;
}

EngineOptions with_known_context(EngineOptions options, int64_t context_max) {
  if (options.context_tokens <= 0) options.context_tokens = context_max;
  options.context_tokens = std::min(options.context_tokens, context_max);
  return options;
}

// A text of more has more tokens than the context has room for, whatever it says.
int64_t longest_text_bytes(const Tokenizer* tokenizer, int64_t context_tokens) {
  return tokenizer == nullptr ? INT64_MAX : context_tokens * tokenizer->longest_token_bytes();
}

}  // namespace

Engine::Engine(Model& model, const Tokenizer* tokenizer, EngineOptions options, Channel& channel,
               const Clock& clock)
    : model_(model),
      tokenizer_(tokenizer),
      options_(with_known_context(std::move(options), model.shape().context_max)),
      channel_(channel),
      clock_(clock),
      context_{tokenizer, options_.stop_ids, channel, clock},
      sampler_(ids_with_a_token(tokenizer, model.shape().vocabulary)),
      scheduler_(options_.sessions_max, model.rows_max()),
      text_bytes_max_(longest_text_bytes(tokenizer, options_.context_tokens)),
      prompt_thread_(tokenizer, model.shape().vocabulary, text_bytes_max_, channel) {
  model_.set_while_waiting([this] { while_waiting(); });
}

Engine::~Engine() {
  model_.set_while_waiting({});
}

void Engine::handle(std::vector<Command> commands) {
  for (Command& command : commands) {
    std::visit([this](auto& value) { handle(value); }, command);
  }
}

void Engine::step() {
  watch_reads();
  handle(channel_.take_commands());
  resize_experts();
  admit_waiting();
  run_passes();
  tell_look_ahead();
  admit_waiting();
  report_status();
}

void Engine::watch_reads() {
  for (const std::string& event : model_.take_disk_events()) log_warning("{}, continuing", event);
  const auto line = read_watch_.look(model_.oldest_pending_read(), clock_.now_ns());
  if (line) log_warning("{}", *line);
}

// In the middle of a layer: tells, and touches no session. Who waits for a disk is alive.
void Engine::while_waiting() {
  watch_reads();
  if (model_.oldest_pending_read()) channel_.beat();
  report_status();
}

// It may change every few hundred passes: a line a minute at most.
void Engine::tell_look_ahead() {
  const std::string_view state = model_.look_ahead_state();
  if (state.empty() || state == "trying" || state == look_ahead_told_) return;
  const int64_t now_ns = clock_.now_ns();
  if (!look_ahead_told_.empty() && now_ns - look_ahead_told_ns_ < look_ahead_interval_ns) return;
  look_ahead_told_ = state;
  look_ahead_told_ns_ = now_ns;
  log_info("look-ahead: {}", state);
}

void Engine::run_passes() {
  if (is_idle()) return;
  const ExpertCacheStats before = model_.expert_stats();
  const double head_seconds = model_.head_seconds();
  const int64_t begin_ns = clock_.now_ns();
  run_decode_pass();
  run_prefill_layer();
  const double seconds = static_cast<double>(clock_.now_ns() - begin_ns) * 1e-9;
  pass_speed_.add(seconds, model_.head_seconds() - head_seconds, before, model_.expert_stats());
}

bool Engine::warm_up() {
  const bool has_more = model_.warm_up();
  channel_.beat();
  return has_more;
}

bool Engine::is_idle() const {
  return !prefill_.forward && !scheduler_.has_runnable();
}

namespace {

bool is_too_long(const Result<Prompt>& prompt) {
  return !prompt.ok() && prompt.error().kind == ErrorKind::no_memory;
}

std::optional<std::string> wrong_value(const Submit& submit) {
  if (submit.tokens_max && *submit.tokens_max < 1) return "max: wanted at least 1 token";
  if (submit.temperature && !(*submit.temperature >= 0 && std::isfinite(*submit.temperature))) {
    return "temperature: wanted a number from 0";
  }
  if (submit.top_p && !(*submit.top_p >= 0 && *submit.top_p <= 1)) {
    return "top_p: wanted a number from 0 to 1";
  }
  return std::nullopt;
}

}  // namespace

void Engine::handle(Submit& submit) {
  ++totals_.requests;
  if (is_draining_) return refuse(submit, "DRAINING", "the daemon is stopping");
  if (scheduler_.find(submit.id) || preparations_.contains(submit.id)) {
    return refuse(submit, "DUPLICATE_ID", fmt::format("request {} is live already", submit.id));
  }
  if (auto wrong = wrong_value(submit)) return refuse(submit, "BAD_VALUE", std::move(*wrong));
  const int64_t now_ns = clock_.now_ns();
  if (std::ssize(submit.prompt) < PromptThread::prompt_bytes_min) {
    const int64_t bytes_max = std::min(text_bytes_max_, PromptThread::prompt_bytes_min);
    Result<Prompt> prompt = make_prompt(submit, tokenizer_, model_.shape().vocabulary, bytes_max);
    // A short conversation may render to a long text, and so belong to the other thread.
    if (!is_too_long(prompt) || bytes_max == text_bytes_max_) {
      enqueue(submit, std::move(prompt), now_ns);
      return;
    }
  }
  preparations_[submit.id].submitted_ns = now_ns;
  prompt_thread_.make(std::move(submit));
}

void Engine::handle(PromptReady& ready) {
  const auto found = preparations_.find(ready.submit.id);
  if (found == preparations_.end()) return;  // cancelled meanwhile
  const Preparation preparation = found->second;
  preparations_.erase(found);
  Session* session = enqueue(ready.submit, std::move(ready.prompt), preparation.submitted_ns);
  if (session == nullptr) return;
  session->hold(preparation.is_held);
  if (preparation.is_stopped) stop(*session);
}

Session* Engine::enqueue(Submit& submit, Result<Prompt> prompt, int64_t submitted_ns) {
  const auto refused = [&](std::string code, std::string message, int64_t prompt_tokens = 0) {
    refuse(submit, std::move(code), std::move(message), prompt_tokens);
    return nullptr;
  };
  if (is_too_long(prompt)) {
    return refused(
        "CONTEXT_EXCEEDED",
        fmt::format("the prompt has more than {} bytes, too many for {} tokens of context",
                    text_bytes_max_, options_.context_tokens));
  }
  if (!prompt.ok()) return refused("BAD_VALUE", prompt.error().message);
  const auto prompt_tokens = static_cast<int64_t>(prompt.value().tokens.size());
  if (prompt_tokens == 0) return refused("EMPTY_PROMPT", "the prompt has no tokens");
  if (prompt_tokens >= options_.context_tokens) {
    return refused(
        "CONTEXT_EXCEEDED",
        fmt::format("the prompt has {} tokens, the context holds {}, and a new token needs room",
                    prompt_tokens, options_.context_tokens),
        prompt_tokens);
  }
  SessionOptions session;
  session.submitted_ns = submitted_ns;
  session.id = submit.id;
  session.prompt = std::move(prompt).value();
  session.sampling.temperature = submit.temperature.value_or(options_.temperature_default);
  session.sampling.top_p = submit.top_p.value_or(options_.top_p_default);
  session.sampling.seed = submit.seed ? *submit.seed : random_seed();
  const int64_t room = options_.context_tokens - prompt_tokens;
  session.tokens_max = std::min(submit.tokens_max.value_or(room), room);
  session.stops = std::move(submit.stops);
  scheduler_.enqueue(std::make_unique<Session>(std::move(session), context_));
  return scheduler_.find(submit.id);
}

void Engine::handle(Cancel& cancel) {
  if (preparations_.erase(cancel.id) > 0) {
    prompt_thread_.forget(cancel.id);
    ++totals_.cancelled;
    channel_.send(Failed{cancel.id, "CANCELLED", "cancelled: prompt=0 completion=0", 0, 0, 0});
    return;
  }
  Session* session = scheduler_.find(cancel.id);
  if (session == nullptr) return;  // it ended while the command was on its way
  ++totals_.cancelled;
  session->fail("CANCELLED", fmt::format("cancelled: prompt={} completion={}",
                                         session->prompt_tokens(), session->completion_tokens()));
  end(*session);
}

void Engine::handle(Stop& command) {
  const auto found = preparations_.find(command.id);
  if (found != preparations_.end()) found->second.is_stopped = true;
  if (Session* session = scheduler_.find(command.id)) stop(*session);
}

void Engine::stop(Session& session) {
  ++totals_.completed;
  session.stop();
  end(session);
}

void Engine::handle(Hold& hold) {
  const auto found = preparations_.find(hold.id);
  if (found != preparations_.end()) found->second.is_held = hold.is_held;
  if (Session* session = scheduler_.find(hold.id)) session->hold(hold.is_held);
}

void Engine::handle(ResizeExperts& resize) {
  arena_wanted_bytes_ = resize.arena_bytes;
}

// Between the layers of all passes. Slots that are being read into stay for now.
void Engine::resize_experts() {
  if (!arena_wanted_bytes_) return;
  arena_bytes_ = model_.resize_experts(*arena_wanted_bytes_);
  if (*arena_bytes_ <= *arena_wanted_bytes_) arena_wanted_bytes_.reset();
}

void Engine::handle(Drain&) {
  is_draining_ = true;
}

void Engine::handle(Quit&) {
  for (const RequestId id : scheduler_.ids()) {
    fail(*scheduler_.find(id), "DRAINING", "the daemon stops");
  }
  for (const auto& [id, preparation] : std::exchange(preparations_, {})) {
    ++totals_.failed;
    channel_.send(Failed{id, "DRAINING", "the daemon stops", 0, 0, 0});
  }
  is_draining_ = true;
  has_quit_ = true;
}

void Engine::refuse(const Submit& submit, std::string code, std::string message,
                    int64_t prompt_tokens) {
  ++totals_.failed;
  channel_.send(Failed{submit.id, std::move(code), std::move(message), prompt_tokens, 0, 0});
}

void Engine::admit_waiting() {
  while (Session* session = scheduler_.next_admissible()) {
    auto sequence = model_.new_sequence(session->tokens_max());
    if (sequence.ok()) {
      totals_.prompt_tokens += session->prompt_tokens();
      scheduler_.admit_next(std::move(sequence).value());
    } else if (sequence.error().kind == ErrorKind::no_memory && scheduler_.active_count() > 0) {
      break;  // a session that ends makes room
    } else {
      fail(*session, "ENGINE", sequence.error().message);
    }
  }
  scheduler_.report_positions();
}

// While a long prompt is on its way, decoding gets about half of the time.
void Engine::run_decode_pass() {
  if (prefill_.forward && prefill_ns_since_decode_ < decode_ns_) return;
  const int64_t begin_ns = clock_.now_ns();
  scheduler_.choose_decode(chosen_);
  begin_pass(decode_);
  while (decode_.forward && !decode_.forward->is_done()) run_layer(decode_);
  finish_pass(decode_);
  decode_ns_ = clock_.now_ns() - begin_ns;
  prefill_ns_since_decode_ = 0;
}

void Engine::run_prefill_layer() {
  if (has_quit_) return;
  const int64_t begin_ns = clock_.now_ns();
  if (!prefill_.forward) {
    scheduler_.choose_prefill(chosen_);
    begin_pass(prefill_);
  }
  if (!prefill_.forward) return;
  run_layer(prefill_);
  if (prefill_.forward && prefill_.forward->is_done()) finish_pass(prefill_);
  prefill_ns_since_decode_ += clock_.now_ns() - begin_ns;
}

void Engine::begin_pass(Pass& pass) {
  if (chosen_.empty()) return;
  pass.parts.clear();
  batch_.clear();
  int64_t rows_left = model_.rows_max();
  for (Session* session : chosen_) {
    const BatchPart part = session->next_part(rows_left);
    const auto rows = static_cast<int64_t>(part.tokens.size());
    rows_left -= rows;
    pass.parts.push_back({session, rows, part.wants_logits});
    batch_.push_back(part);
    session->enter_pass();
  }
  Result<PassPtr> forward = model_.begin(batch_);
  if (!forward.ok()) return retry_alone(pass, forward.error());
  pass.forward = std::move(forward).value();
}

void Engine::run_layer(Pass& pass) {
  const Result<void> result = pass.forward->run_layer();
  channel_.beat();
  if (result.ok()) {
    for (const PassPart& part : pass.parts) {
      if (part.session == nullptr) continue;
      part.session->report_prefill(part.rows, pass.forward->layers_done(), model_.shape().layers);
    }
  } else {
    pass.forward.reset();
    retry_alone(pass, result.error());
  }
  handle(channel_.take_commands());
}

void Engine::finish_pass(Pass& pass) {
  if (!pass.forward) return;
  const PassPtr forward = std::move(pass.forward);
  forward->commit();
  for (size_t index = 0; index < pass.parts.size(); ++index) {
    const PassPart& part = pass.parts[index];
    if (part.session == nullptr) continue;
    part.session->leave_pass();
    if (part.wants_logits) take_logits(*part.session, forward->logits(static_cast<int64_t>(index)));
    if (part.session->is_ended()) {
      end(*part.session);
    } else {
      part.session->passed();
    }
  }
}

// An error says nothing about whose rows it hit: each of them tries once more by itself.
void Engine::retry_alone(const Pass& pass, const Error& cause) {
  ++totals_.passes_failed;
  log_warning("a pass with {} sessions failed: {}, continuing", pass.parts.size(), cause.message);
  for (const PassPart& part : pass.parts) {
    if (part.session == nullptr) continue;
    part.session->leave_pass();
    if (part.session->must_run_alone()) {
      fail(*part.session, "ENGINE", cause.message);
    } else {
      part.session->run_alone();
    }
  }
}

void Engine::take_logits(Session& session, std::span<const float> logits) {
  const Result<int32_t> token =
      sampler_.sample(logits, session.sampling(), session.completion_tokens());
  if (!token.ok()) {
    ++totals_.failed;
    session.fail("ENGINE", token.error().message);
    return;
  }
  const int64_t tokens_before = session.completion_tokens();
  if (session.take_token(token.value())) ++totals_.completed;
  totals_.completion_tokens += session.completion_tokens() - tokens_before;
}

void Engine::drop_from(Pass& pass, const Session* session) {
  if (!pass.forward) return;
  const auto place = std::find_if(pass.parts.begin(), pass.parts.end(),
                                  [&](const PassPart& part) { return part.session == session; });
  if (place == pass.parts.end()) return;
  pass.forward->drop(place - pass.parts.begin());
  place->session = nullptr;
  const bool is_empty = std::all_of(pass.parts.begin(), pass.parts.end(),
                                    [](const PassPart& part) { return part.session == nullptr; });
  if (is_empty) pass.forward.reset();
}

void Engine::fail(Session& session, std::string code, std::string message) {
  ++totals_.failed;
  session.fail(std::move(code), std::move(message));
  end(session);
}

void Engine::end(Session& session) {
  CHECK(session.is_ended());
  drop_from(decode_, &session);
  drop_from(prefill_, &session);
  scheduler_.remove(session.id());
}

void Engine::report_status(bool is_urgent) {
  const int64_t now_ns = clock_.now_ns();
  const bool is_due = status_.empty() || now_ns - status_sent_ns_ >= status_interval_ns;
  if (!is_due && !is_urgent) return;
  std::string status = status_json();
  if (status == status_) return;
  status_ = status;
  status_sent_ns_ = now_ns;
  channel_.send(StatusSnapshot{std::move(status)});
}

// How the cache does: shares of all look-ups, and bytes read for each token that was computed.
Json Engine::experts_json() const {
  const ExpertCacheStats stats = model_.expert_stats();
  const int64_t wanted = stats.hits + stats.misses;
  const int64_t tokens = totals_.prompt_tokens + totals_.completion_tokens;
  Json experts = Json::object({{"hits", Json::integer(stats.hits)},
                               {"misses", Json::integer(stats.misses)},
                               {"read_bytes", Json::integer(stats.read_bytes)},
                               {"rereads", Json::integer(stats.rereads)}});
  if (wanted > 0) {
    experts.set("hit_rate",
                Json::real(static_cast<double>(stats.hits) / static_cast<double>(wanted)));
  }
  if (tokens > 0) experts.set("read_bytes_per_token", Json::integer(stats.read_bytes / tokens));
  if (stats.read_seconds > 0) {
    experts.set("read_bytes_per_s",
                Json::real(static_cast<double>(stats.read_bytes) / stats.read_seconds));
    experts.set("read_seconds", Json::real(stats.read_seconds));
    experts.set("wait_seconds", Json::real(stats.wait_seconds));
  }
  if (const std::string_view state = model_.look_ahead_state(); !state.empty()) {
    experts.set("look_ahead", Json::string(std::string(state)));
  }
  if (stats.ahead_issued > 0) {
    experts.set("ahead", Json::object({{"issued", Json::integer(stats.ahead_issued)},
                                       {"used", Json::integer(stats.ahead_used)},
                                       {"late", Json::integer(stats.ahead_late)},
                                       {"wasted", Json::integer(stats.ahead_wasted)},
                                       {"dropped", Json::integer(stats.ahead_dropped)}}));
  }
  if (arena_bytes_) experts.set("arena_bytes", Json::integer(*arena_bytes_));
  return experts;
}

static Json hanging_read_json(const PendingRead& read, int64_t now_ns) {
  return Json::object({{"file", Json::string(read.path)},
                       {"offset", Json::integer(read.offset)},
                       {"bytes", Json::integer(read.bytes)},
                       {"seconds", Json::integer(read.seconds(now_ns))}});
}

static Json disks_json(const std::vector<DiskStatus>& disks) {
  Json list = Json::array();
  for (const DiskStatus& disk : disks) {
    list.items().push_back(Json::object({
        {"folder", Json::string(disk.name)},
        {"state", Json::string(disk.is_in_use ? "in use" : "left out")},
        {"read_bytes", Json::integer(disk.counters.bytes)},
        {"failures", Json::integer(disk.counters.failures)},
        {"bytes_per_second", Json::integer(static_cast<int64_t>(disk.bytes_per_second))},
    }));
  }
  return list;
}

std::string Engine::status_json() const {
  Json status = options_.facts;
  const std::string state = is_draining_ ? "draining" : "ready";
  const int64_t queued = scheduler_.queued_count() + std::ssize(preparations_);
  std::string line =
      fmt::format("{}, {} active, {} queued", state, scheduler_.active_count(), queued);
  const int64_t now_ns = clock_.now_ns();
  const std::optional<PendingRead> read = model_.oldest_pending_read();
  if (read && read->hangs(now_ns)) {
    line += fmt::format(", no answer from a disk for {} s", read->seconds(now_ns));
    status.set("hanging_read", hanging_read_json(*read, now_ns));
  }
  status.set("state", Json::string(state));
  status.set("status", Json::string(line));
  status.set("active", Json::integer(scheduler_.active_count()));
  status.set("queued", Json::integer(queued));
  status.set("sessions_max", Json::integer(options_.sessions_max));
  status.set("context_tokens", Json::integer(options_.context_tokens));
  status.set("experts", experts_json());
  if (pass_speed_.has_passes()) status.set("speed", pass_speed_.to_json());
  if (Json disks = disks_json(model_.disks()); !disks.items().empty()) {
    status.set("disks", std::move(disks));
  }
  status.set("totals", Json::object({
                           {"requests", Json::integer(totals_.requests)},
                           {"completed", Json::integer(totals_.completed)},
                           {"failed", Json::integer(totals_.failed)},
                           {"cancelled", Json::integer(totals_.cancelled)},
                           {"prompt_tokens", Json::integer(totals_.prompt_tokens)},
                           {"completion_tokens", Json::integer(totals_.completion_tokens)},
                           {"passes_failed", Json::integer(totals_.passes_failed)},
                       }));
  return status.to_string();
}

}  // namespace glmd
