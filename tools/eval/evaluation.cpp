#include "tools/eval/evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace glmd {
namespace {

Result<void> run_to_end(ForwardPass& pass) {
  while (!pass.is_done()) TRY(pass.run_layer());
  pass.commit();
  return {};
}

int32_t argmax(std::span<const float> logits, const GreedyRule& rule) {
  int32_t best = -1;
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    if (rule.is_allowed && !rule.is_allowed(id)) continue;
    if (best < 0 || logits[id] > logits[best]) best = id;
  }
  return best;
}

Result<void> check_ids(const Model& model, std::span<const int32_t> ids) {
  if (ids.empty()) return error(ErrorKind::usage, "no token ids given");
  for (const int32_t id : ids) {
    if (id < 0 || id >= model.shape().vocabulary) {
      return error(ErrorKind::bad_input, "token id: wanted 0 to {}, got {}",
                   model.shape().vocabulary - 1, id);
    }
  }
  return {};
}

}  // namespace

Result<void> forced_logits(Model& model, std::span<const int32_t> ids, int64_t step_rows,
                           const RowSink& sink, const RowSink* draft_sink) {
  TRY(check_ids(model, ids));
  const auto count = static_cast<int64_t>(ids.size());
  const std::unique_ptr<SequenceState> sequence = TRY(model.new_sequence(count));
  const int64_t vocabulary = model.shape().vocabulary;
  const auto emit = [&](const ForwardPass& pass, const RowSink& target) -> Result<void> {
    const std::span<const float> logits = pass.logits(0);
    for (size_t row = 0; row < logits.size(); row += static_cast<size_t>(vocabulary)) {
      TRY(target(logits.subspan(row, static_cast<size_t>(vocabulary))));
    }
    return {};
  };
  for (int64_t begin = 0; begin < count; begin += step_rows) {
    const int64_t rows = std::min(step_rows, count - begin);
    const BatchPart part{.sequence = sequence.get(),
                         .tokens = ids.subspan(begin, rows),
                         .wants_logits = true,
                         .wants_all_logits = true};
    const PassPtr pass = TRY(model.begin({&part, 1}));
    TRY(run_to_end(*pass));
    TRY(emit(*pass, sink));
    if (draft_sink == nullptr) continue;
    // Draft row p needs token p + 1: the last position has none.
    const int64_t draft_rows = std::min(rows, count - 1 - begin);
    if (draft_rows == 0) continue;
    const std::span<const float> hidden = pass->hidden(0);
    const size_t width = hidden.size() / static_cast<size_t>(rows);
    const PassPtr draft =
        TRY(model.begin_draft(*sequence, ids.subspan(begin + 1, draft_rows),
                              hidden.first(static_cast<size_t>(draft_rows) * width)));
    TRY(run_to_end(*draft));
    TRY(emit(*draft, *draft_sink));
  }
  return {};
}

Result<std::vector<int32_t>> greedy(Model& model, std::span<const int32_t> ids, int64_t step_rows,
                                    const GreedyRule& rule) {
  TRY(check_ids(model, ids));
  const auto prompt = static_cast<int64_t>(ids.size());
  const std::unique_ptr<SequenceState> sequence = TRY(model.new_sequence(prompt + rule.count));
  std::vector<int32_t> pending(ids.begin(), ids.end());
  std::vector<int32_t> out;
  while (static_cast<int64_t>(out.size()) < rule.count) {
    const int64_t rows = std::min<int64_t>(step_rows, static_cast<int64_t>(pending.size()));
    const bool is_last = rows == static_cast<int64_t>(pending.size());
    const BatchPart part{.sequence = sequence.get(),
                         .tokens = std::span(pending).first(static_cast<size_t>(rows)),
                         .wants_logits = is_last};
    const PassPtr pass = TRY(model.begin({&part, 1}));
    TRY(run_to_end(*pass));
    pending.erase(pending.begin(), pending.begin() + rows);
    if (!is_last) continue;
    const int32_t next = argmax(pass->logits(0), rule);
    CHECK(next >= 0);
    out.push_back(next);
    if (rule.is_stop && rule.is_stop(next)) break;
    pending.push_back(next);
  }
  return out;
}

Result<Perplexity> perplexity(Model& model, std::span<const int32_t> ids,
                              std::span<const int32_t> prefix, int64_t window, int64_t context) {
  Perplexity result;
  double loss = 0;
  const auto count = static_cast<int64_t>(ids.size());
  for (int64_t begin = context; begin < count; begin += window) {
    const int64_t end = std::min(begin + window, count);
    std::vector<int32_t> sequence(prefix.begin(), prefix.end());
    sequence.insert(sequence.end(), ids.begin() + begin - context, ids.begin() + end);
    const int64_t first_scored = static_cast<int64_t>(prefix.size()) + context;
    int64_t row = 0;
    const RowSink score = [&](std::span<const float> logits) -> Result<void> {
      const int64_t target = ++row;  // this row predicts it
      if (target < first_scored || target >= static_cast<int64_t>(sequence.size())) return {};
      const float high = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit - high));
      loss -= static_cast<double>(logits[sequence[target]] - high) - std::log(sum);
      ++result.scored_tokens;
      return {};
    };
    TRY(forced_logits(model, sequence, model.rows_max(), score, nullptr));
  }
  if (result.scored_tokens == 0) {
    return error(ErrorKind::bad_input, "perplexity: wanted more than {} tokens of text, got {}",
                 context, count);
  }
  result.value = std::exp(loss / static_cast<double>(result.scored_tokens));
  return result;
}

}  // namespace glmd
