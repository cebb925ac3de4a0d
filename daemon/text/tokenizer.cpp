#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "platform/file.h"
#include "platform/json.h"
#include "text/added_tokens.h"
#include "text/pretokenizer.h"
#include "text/unicode.h"

namespace glmd {
namespace {

constexpr int64_t file_bytes_max = 256 << 20;
constexpr int64_t id_max =
    (1 << 24) - 1;  // tables are indexed by id: a huge one must not cost memory
constexpr size_t byte_count = 256;

struct Merge {
  int32_t rank;
  int32_t merged_id;
};

// Merges by pair of ids; open addressing, since BPE does little else than ask it.
class MergeTable {
 public:
  explicit MergeTable(size_t merge_count) {
    size_t capacity = 16;
    while (capacity < 2 * merge_count) capacity *= 2;
    slots_.resize(capacity);
  }

  void set(int32_t left, int32_t right, Merge merge) {
    Slot& slot = slots_[slot_of(key(left, right))];
    slot = {key(left, right), merge};
  }

  const Merge* find(int32_t left, int32_t right) const {
    const Slot& slot = slots_[slot_of(key(left, right))];
    return slot.key == no_key ? nullptr : &slot.merge;
  }

 private:
  static constexpr uint64_t no_key = ~uint64_t{0};
  struct Slot {
    uint64_t key = no_key;
    Merge merge{};
  };

  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }

  size_t slot_of(uint64_t wanted) const {
    const size_t mask = slots_.size() - 1;
    size_t index = (wanted * 0x9e3779b97f4a7c15u >> 32) & mask;
    while (slots_[index].key != wanted && slots_[index].key != no_key) index = (index + 1) & mask;
    return index;
  }

  std::vector<Slot> slots_;
};

// Byte-level BPE writes bytes as characters: printable Latin-1 stands for itself, the other 68
// bytes for U+0100 and on, in order (GPT-2).
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    size_t next = 0x100;
    for (size_t byte = 0; byte < byte_count; ++byte) {
      const bool stands_for_itself =
          (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      bytes_[stands_for_itself ? byte : next++] = static_cast<int16_t>(byte);
    }
  }

  // The bytes that a token's text stands for, or nothing if it has a character of another kind.
  std::optional<std::string> bytes_of(std::string_view text) const {
    std::string bytes;
    for (size_t index = 0; index < text.size();) {
      const DecodedCharacter character = decode_utf8(text, index);
      if (character.code_point >= bytes_.size() || bytes_[character.code_point] < 0) return {};
      bytes += static_cast<char>(bytes_[character.code_point]);
      index += character.bytes;
    }
    return bytes;
  }

 private:
  std::array<int16_t, 0x180> bytes_;
};

}  // namespace

struct Tokenizer::Tables {
  std::vector<std::string> tokens;                         // [id] raw bytes
  std::vector<uint8_t> exists;                             // [id]
  std::vector<uint8_t> special;                            // [id]
  std::unordered_map<std::string_view, int32_t> base_ids;  // by raw bytes, into `tokens`
  std::array<int32_t, byte_count> byte_ids;
  MergeTable merges{0};
  int64_t longest_token_bytes = 0;
  bool ignore_merges = false;  // a piece that is a token is not merged but taken whole
  AddedTokens added;
  std::string ignored_settings;
};

Tokenizer::Tokenizer(std::unique_ptr<const Tables> tables) : tables_(std::move(tables)) {}
Tokenizer::Tokenizer(Tokenizer&& other) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&& other) noexcept = default;
Tokenizer::~Tokenizer() = default;

namespace {

template <typename... Args>
Error malformed(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorKind::bad_input, format, std::forward<Args>(args)...);
}

// Tokens come from a file: in a message they are cut to a line's part.
std::string quoted(std::string_view text) {
  constexpr size_t shown_bytes_max = 60;
  std::string out;
  append_json_string(out, replace_invalid_utf8(text.substr(0, shown_bytes_max)));
  if (text.size() > shown_bytes_max) out += "…";
  return out;
}

bool is_absent(const Json* value) {
  return value == nullptr || value->is_null();
}

bool is_string(const Json* value, std::string_view wanted) {
  return value != nullptr && value->is_string() && value->as_string() == wanted;
}

// A switch that may be absent, which means off.
Result<bool> read_switch(const Json& object, std::string_view name) {
  const Json* value = object.find(name);
  if (is_absent(value)) return false;
  if (!value->is_boolean()) return malformed("{} is not true or false", name);
  return value->as_boolean();
}

Result<int32_t> read_id(const Json& value, std::string_view token) {
  if (!value.is_integer() || value.as_integer() < 0 || value.as_integer() > id_max) {
    return malformed("token {}: the id is not an integer from 0 to {}", quoted(token), id_max);
  }
  return static_cast<int32_t>(value.as_integer());
}

Result<void> check_off(const Json& object, std::string_view name) {
  if (TRY(read_switch(object, name))) return malformed("{} is set, which is not supported", name);
  return {};
}

Result<void> check_split(const Json& step) {
  const Json* pattern = step.find("pattern");
  const Json* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
  if (regex == nullptr || !regex->is_string()) return malformed("Split has no pattern.Regex");
  if (regex->as_string() != pretokenizer_pattern) {
    return malformed("the pattern {} is not GLM's, and no other is supported",
                     quoted(regex->as_string()));
  }
  if (!is_string(step.find("behavior"), "Isolated")) {
    return malformed("Split: the behavior is not \"Isolated\"");
  }
  return check_off(step, "invert");
}

Result<void> check_byte_level(const Json& step) {
  // The defaults of the reference are on: absent is not off here.
  for (const std::string_view name : {"add_prefix_space", "use_regex"}) {
    const Json* value = step.find(name);
    if (value == nullptr || !value->is_boolean() || value->as_boolean()) {
      return malformed("ByteLevel: {} is not false", name);
    }
  }
  return {};
}

Result<void> check_pretokenizer(const Json* pretokenizer) {
  if (is_absent(pretokenizer)) return malformed("it is missing");
  if (!is_string(pretokenizer->find("type"), "Sequence")) return malformed("it is not a Sequence");
  const Json* steps = pretokenizer->find("pretokenizers");
  if (steps == nullptr || !steps->is_array() || steps->items().size() != 2 ||
      !is_string(steps->items()[0].find("type"), "Split") ||
      !is_string(steps->items()[1].find("type"), "ByteLevel")) {
    return malformed("it is not a Split followed by ByteLevel");
  }
  TRY(check_split(steps->items()[0]));
  return check_byte_level(steps->items()[1]);
}

// A post-processor of another kind would add tokens.
Result<void> check_post_processor(const Json* processor, int depth = 0) {
  if (is_absent(processor) || is_string(processor->find("type"), "ByteLevel")) return {};
  const Json* steps = processor->find("processors");
  if (depth > 0 || !is_string(processor->find("type"), "Sequence") || steps == nullptr ||
      !steps->is_array()) {
    return malformed("it is of another kind than ByteLevel");
  }
  for (const Json& step : steps->items()) TRY(check_post_processor(&step, depth + 1));
  return {};
}

Result<void> check_parts(const Json& root) {
  if (!is_absent(root.find("normalizer"))) return malformed("a normalizer is not supported");
  TRY_CONTEXT(check_pretokenizer(root.find("pre_tokenizer")), "pre_tokenizer");
  TRY_CONTEXT(check_post_processor(root.find("post_processor")), "post_processor");
  const Json* decoder = root.find("decoder");
  if (is_absent(decoder) || !is_string(decoder->find("type"), "ByteLevel")) {
    return malformed("decoder: it is not ByteLevel");
  }
  return {};
}

Result<void> check_model(const Json& model) {
  if (!is_string(model.find("type"), "BPE")) return malformed("the type is not \"BPE\"");
  for (const std::string_view name :
       {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = model.find(name);
    if (!is_absent(value) && !is_string(value, "")) return malformed("{} is not supported", name);
  }
  const Json* dropout = model.find("dropout");
  if (!is_absent(dropout) && !(dropout->is_number() && dropout->as_real() == 0)) {
    return malformed("dropout is not supported");
  }
  return check_off(model, "byte_fallback");
}

using TextIds = std::unordered_map<std::string_view, int32_t>;

struct Vocabulary {
  std::vector<std::string> tokens;  // [id] raw bytes
  std::vector<uint8_t> exists;      // [id]
};

Result<void> place(Vocabulary& vocabulary, int32_t id, std::string bytes, std::string_view text) {
  const auto index = static_cast<size_t>(id);
  if (index >= vocabulary.exists.size()) {
    vocabulary.exists.resize(index + 1);
    vocabulary.tokens.resize(index + 1);
  }
  if (vocabulary.exists[index]) {
    return malformed("token {}: id {} is taken by another token", quoted(text), id);
  }
  vocabulary.exists[index] = true;
  vocabulary.tokens[index] = std::move(bytes);
  return {};
}

// A token that is not written in the byte alphabet cannot come out of text, but can be decoded: as
// it stands.
std::string bytes_or_text(const ByteAlphabet& alphabet, std::string_view text) {
  return alphabet.bytes_of(text).value_or(std::string(text));
}

Result<Vocabulary> read_vocabulary(const Json& model, const ByteAlphabet& alphabet,
                                   TextIds& text_ids) {
  const Json* vocab = model.find("vocab");
  if (vocab == nullptr || !vocab->is_object()) return malformed("vocab is not an object");
  Vocabulary vocabulary;
  for (const auto& [text, value] : vocab->members()) {
    const int32_t id = TRY(read_id(value, text));
    if (text.empty()) return malformed("id {} is an empty token", id);
    if (!text_ids.emplace(text, id).second) return malformed("token {} stands twice", quoted(text));
    TRY(place(vocabulary, id, bytes_or_text(alphabet, text), text));
  }
  return vocabulary;
}

struct MergePair {
  std::string_view left;
  std::string_view right;
};

// "a b" or ["a", "b"]: the format changed in 2024 and files of both kinds are about.
std::optional<MergePair> read_merge_pair(const Json& merge) {
  if (merge.is_string()) {
    const std::string_view text = merge.as_string();
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      return {};
    }
    return MergePair{text.substr(0, space), text.substr(space + 1)};
  }
  if (!merge.is_array() || merge.items().size() != 2) return {};
  if (!merge.items()[0].is_string() || !merge.items()[1].is_string()) return {};
  return MergePair{merge.items()[0].as_string(), merge.items()[1].as_string()};
}

Result<MergeTable> read_merges(const Json& model, const TextIds& text_ids) {
  const Json* merges = model.find("merges");
  if (merges == nullptr || !merges->is_array()) return malformed("merges is not an array");
  MergeTable table(merges->items().size());
  int32_t rank = 0;
  for (const Json& merge : merges->items()) {
    const std::optional<MergePair> pair = read_merge_pair(merge);
    if (!pair) return malformed("merge {} is neither \"a b\" nor [\"a\", \"b\"]", rank);
    const auto id_of = [&](std::string_view text) -> Result<int32_t> {
      const auto found = text_ids.find(text);
      if (found == text_ids.end()) {
        return malformed("merge {}: token {} is not in the vocabulary", rank, quoted(text));
      }
      return found->second;
    };
    const int32_t left = TRY(id_of(pair->left));
    const int32_t right = TRY(id_of(pair->right));
    const std::string joined = std::string(pair->left).append(pair->right);
    table.set(left, right, {rank, TRY(id_of(joined))});
    ++rank;
  }
  return table;
}

}  // namespace

namespace {

Result<AddedToken> read_added_token(const Json& token) {
  const Json* content = token.find("content");
  if (content == nullptr || !content->is_string() || content->as_string().empty()) {
    return malformed("it has no content");
  }
  const std::string& text = content->as_string();
  if (token.find("id") == nullptr) return malformed("{} has no id", quoted(text));
  const auto is_set = [&](std::string_view name) -> Result<bool> {
    return TRY_CONTEXT(read_switch(token, name), quoted(text));
  };
  return AddedToken{.text = text,
                    .id = TRY(read_id(*token.find("id"), text)),
                    .is_normalized = TRY(is_set("normalized")),
                    .is_single_word = TRY(is_set("single_word")),
                    .strips_left = TRY(is_set("lstrip")),
                    .strips_right = TRY(is_set("rstrip"))};
}

struct AddedVocabulary {
  std::vector<AddedToken> tokens;
  std::vector<int32_t> special_ids;
};

Result<AddedVocabulary> read_added_tokens(const Json& root, const ByteAlphabet& alphabet,
                                          TextIds& text_ids, Vocabulary& vocabulary) {
  AddedVocabulary added;
  const Json* list = root.find("added_tokens");
  if (is_absent(list)) return added;
  if (!list->is_array()) return malformed("it is not an array");
  std::unordered_set<std::string_view> seen;
  for (const Json& item : list->items()) {
    AddedToken token = TRY(read_added_token(item));
    const std::string_view text = item.find("content")->as_string();
    if (!seen.insert(text).second) return malformed("token {} stands twice", quoted(text));
    const auto [known, is_new] = text_ids.emplace(text, token.id);
    if (!is_new && known->second != token.id) {
      return malformed("token {} has id {}, and {} in the vocabulary", quoted(text), token.id,
                       known->second);
    }
    if (is_new) TRY(place(vocabulary, token.id, bytes_or_text(alphabet, text), text));
    if (TRY(read_switch(item, "special"))) added.special_ids.push_back(token.id);
    added.tokens.push_back(std::move(token));
  }
  return added;
}

// They would cut a text off or fill it up: what a caller of the reference asks for, each time anew.
std::string settings_of_calls(const Json& root) {
  std::string names;
  for (const std::string_view name : {"truncation", "padding"}) {
    if (is_absent(root.find(name))) continue;
    names += names.empty() ? "" : " and ";
    names += name;
  }
  return names;
}

}  // namespace

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view what) {
  const auto build = [&]() -> Result<Tokenizer> {
    const Json root = TRY(parse_json(json, "tokenizer"));
    if (!root.is_object()) return malformed("it is not a JSON object");
    const Json* model = root.find("model");
    if (model == nullptr || !model->is_object()) return malformed("it has no model");
    TRY_CONTEXT(check_model(*model), "model");
    TRY(check_parts(root));

    const ByteAlphabet alphabet;
    TextIds text_ids;
    auto tables = std::make_unique<Tables>();
    Vocabulary vocabulary = TRY_CONTEXT(read_vocabulary(*model, alphabet, text_ids), "model");
    tables->merges = TRY_CONTEXT(read_merges(*model, text_ids), "model");
    tables->ignore_merges = TRY_CONTEXT(read_switch(*model, "ignore_merges"), "model");
    const TextIds base_text_ids = text_ids;
    AddedVocabulary added =
        TRY_CONTEXT(read_added_tokens(root, alphabet, text_ids, vocabulary), "added_tokens");

    tables->tokens = std::move(vocabulary.tokens);
    tables->exists = std::move(vocabulary.exists);
    for (const std::string& token : tables->tokens) {
      tables->longest_token_bytes = std::max(tables->longest_token_bytes, std::ssize(token));
    }
    tables->base_ids.reserve(base_text_ids.size());
    for (const auto& [text, id] : base_text_ids) {
      // Only what is written in the alphabet can be met in text.
      if (alphabet.bytes_of(text)) tables->base_ids.emplace(tables->tokens[id], id);
    }
    for (size_t byte = 0; byte < byte_count; ++byte) {
      const char value = static_cast<char>(byte);
      const auto found = tables->base_ids.find(std::string_view(&value, 1));
      if (found == tables->base_ids.end()) {
        return malformed("model: the vocabulary has no token for the byte {:#04x}", byte);
      }
      tables->byte_ids[byte] = found->second;
    }

    tables->special.resize(tables->tokens.size());
    for (const int32_t id : added.special_ids) tables->special[id] = true;
    tables->added = AddedTokens(std::move(added.tokens));
    tables->ignored_settings = settings_of_calls(root);
    return Tokenizer(std::move(tables));
  };
  return TRY_CONTEXT(build(), what);
}

Result<Tokenizer> Tokenizer::open(const std::string& path, std::optional<int64_t> vocabulary) {
  const std::string text = TRY(read_file(path, file_bytes_max));
  Tokenizer tokenizer = TRY(parse(text, path));
  for (int64_t id = vocabulary.value_or(tokenizer.vocabulary_size());
       id < tokenizer.vocabulary_size(); ++id) {
    const auto beyond = static_cast<int32_t>(id);
    if (!tokenizer.has_token(beyond)) continue;
    return malformed("{}: token {}: wanted an id below {}, the vocab_size of config.json, got {}",
                     path, quoted(tokenizer.token_bytes(beyond)), *vocabulary, id);
  }
  return tokenizer;
}

namespace {

// A piece while it is merged: a list of symbols, threaded through a vector.
struct Symbol {
  int32_t id;        // swallowed once its left neighbour has it
  int32_t previous;  // index, -1 at the start
  int32_t next;      // index, -1 at the end
};

constexpr int32_t swallowed = -1;

struct Candidate {
  int32_t rank;
  int32_t position;  // of the left symbol
  int32_t merged_id;
  // For a heap whose top is the lowest rank, leftmost on ties.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

// Merges one piece. The heap keeps it near-linear: a megabyte of letters is one piece. Takes 24
// bytes for each of the piece.
class PieceMerger {
 public:
  PieceMerger(const MergeTable& merges, const std::array<int32_t, byte_count>& byte_ids)
      : merges_(merges), byte_ids_(byte_ids) {}

  void merge(std::string_view piece, std::vector<int32_t>& ids) {
    symbols_.clear();
    symbols_.reserve(piece.size());
    candidates_.reserve(piece.size());
    const auto count = static_cast<int32_t>(piece.size());
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(piece[i])];
      symbols_.push_back({id, i - 1, i + 1 < count ? i + 1 : -1});
    }
    for (int32_t i = 0; i + 1 < count; ++i) consider(i);
    while (!candidates_.empty()) {
      std::pop_heap(candidates_.begin(), candidates_.end());
      const Candidate best = candidates_.back();
      candidates_.pop_back();
      apply(best);
    }
    for (int32_t i = 0; i >= 0; i = symbols_[i].next) ids.push_back(symbols_[i].id);
  }

 private:
  // Notes the merge of the symbol at `position` with the next one, if there is such a merge.
  void consider(int32_t position) {
    const Symbol& left = symbols_[position];
    const Merge* merge = merges_.find(left.id, symbols_[left.next].id);
    if (merge == nullptr) return;
    if (candidates_.size() == symbols_.size()) drop_outdated();
    candidates_.push_back({merge->rank, position, merge->merged_id});
    std::push_heap(candidates_.begin(), candidates_.end());
  }

  // Neighbours change after a candidate was noted; as in the reference, the same result still
  // counts.
  bool is_outdated(const Candidate& candidate) const {
    const Symbol& left = symbols_[candidate.position];
    if (left.id == swallowed || left.next < 0) return true;
    const Merge* merge = merges_.find(left.id, symbols_[left.next].id);
    return merge == nullptr || merge->merged_id != candidate.merged_id;
  }

  // So many candidates as the piece has bytes cannot all be of use: fewer pairs are left. Each
  // merge leaves more room than the one before, so this is seldom done.
  void drop_outdated() {
    std::erase_if(candidates_, [&](const Candidate& c) { return is_outdated(c); });
    std::make_heap(candidates_.begin(), candidates_.end());
  }

  void apply(const Candidate& candidate) {
    if (is_outdated(candidate)) return;
    Symbol& left = symbols_[candidate.position];
    Symbol& right = symbols_[left.next];
    left.id = candidate.merged_id;
    left.next = right.next;
    right.id = swallowed;
    if (left.next >= 0) symbols_[left.next].previous = candidate.position;
    if (left.previous >= 0) consider(left.previous);
    if (left.next >= 0) consider(candidate.position);
  }

  const MergeTable& merges_;
  const std::array<int32_t, byte_count>& byte_ids_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;  // a heap
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, Recognise recognise) const {
  const std::vector<TextSpan> spans{{std::string(text), recognise == Recognise::added_tokens}};
  return encode(spans);
}

std::vector<int32_t> Tokenizer::encode(std::span<const TextSpan> spans) const {
  std::string text;
  std::vector<TextRange> trusted;  // adjacent ones joined
  for (const TextSpan& span : spans) {
    const TextRange range{text.size(), text.size() + span.text.size()};
    text += span.text;
    if (!span.is_trusted) continue;
    if (!trusted.empty() && trusted.back().end == range.begin) {
      trusted.back().end = range.end;
    } else {
      trusted.push_back(range);
    }
  }

  std::vector<int32_t> ids;
  PieceMerger merger(tables_->merges, tables_->byte_ids);
  const auto encode_plain = [&](std::string_view plain) {
    CHECK(plain.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()));
    for (size_t begin = 0; begin < plain.size();) {
      const size_t end = find_piece_end(plain, begin);
      const std::string_view piece = plain.substr(begin, end - begin);
      begin = end;
      const auto whole =
          tables_->ignore_merges ? tables_->base_ids.find(piece) : tables_->base_ids.end();
      if (whole != tables_->base_ids.end()) {
        ids.push_back(whole->second);
      } else {
        merger.merge(piece, ids);
      }
    }
  };
  tables_->added.split(text, trusted, [&](const TextPart& part) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
    } else {
      encode_plain(
          std::string_view(text).substr(part.range.begin, part.range.end - part.range.begin));
    }
  });
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    bytes += token_bytes(id);
  }
  return replace_invalid_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return has_token(id) ? std::string_view(tables_->tokens[id]) : std::string_view();
}

bool Tokenizer::has_token(int32_t id) const {
  return id >= 0 && id < vocabulary_size() && tables_->exists[id] != 0;
}

bool Tokenizer::is_special(int32_t id) const {
  return has_token(id) && tables_->special[id] != 0;
}

std::optional<int32_t> Tokenizer::find(std::string_view added_token) const {
  const AddedToken* token = tables_->added.find(added_token);
  return token != nullptr ? std::optional(token->id) : std::nullopt;
}

const std::string& Tokenizer::ignored_settings() const {
  return tables_->ignored_settings;
}

int64_t Tokenizer::longest_token_bytes() const {
  return tables_->longest_token_bytes;
}

int32_t Tokenizer::vocabulary_size() const {
  return static_cast<int32_t>(tables_->tokens.size());
}

}  // namespace glmd
