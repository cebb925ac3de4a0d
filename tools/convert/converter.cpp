#include "tools/convert/converter.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "platform/counted.h"
#include "platform/file.h"
#include "platform/parallel.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"
#include "text/chat_doubts.h"
#include "text/tokenizer.h"
#include "tools/convert/background.h"
#include "tools/convert/container_folder.h"
#include "tools/convert/journal.h"
#include "tools/convert/tensor_encoder.h"

namespace glmd {
namespace {

constexpr const char* journal_name = Journal::file_name;
constexpr const char* record_name = "conversion.json";
constexpr int64_t record_bytes_max = int64_t{256} << 20;
constexpr int64_t small_file_bytes_max = int64_t{256} << 20;
constexpr size_t tensors_ahead = 4;
constexpr int64_t write_behind_bytes = int64_t{128} << 20;  // and a tensor more

Json stamps_json(const std::vector<Checkpoint::FileStamp>& stamps, bool with_time) {
  std::vector<Json> items;
  for (const Checkpoint::FileStamp& stamp : stamps) {
    Json item =
        Json::object({{"name", Json::string(stamp.name)}, {"bytes", Json::integer(stamp.bytes)}});
    if (with_time) item.set("modified_ns", Json::integer(stamp.modified_ns));
    items.push_back(std::move(item));
  }
  return Json::array(std::move(items));
}

// For people: the folder's name, its revision where it lies in a hub cache (snapshots/REVISION),
// its shards.
Json source_json(const Checkpoint& checkpoint) {
  std::error_code code;
  const std::filesystem::path path = std::filesystem::canonical(checkpoint.folder(), code);
  std::string name = path.filename().string();
  Json source = Json::object();
  if (path.parent_path().filename() == "snapshots") {
    source.set("revision", Json::string(name));
    name = path.parent_path().parent_path().filename().string();
  }
  source.set("name", Json::string(name));
  source.set("files", stamps_json(checkpoint.shard_stamps(), false));
  return source;
}

Json ignored_json(const ConvertOptions& options) {
  std::vector<Json> ignored;
  for (const std::string& pattern : options.ignored) ignored.push_back(Json::string(pattern));
  return Json::array(std::move(ignored));
}

// What glmd.json does not tell of a conversion, left beside it: times of files are not the same
// wherever the same container is made, and no part of it.
Json record_json(const Checkpoint& checkpoint, const ConvertOptions& options) {
  return Json::object({{"ignored", ignored_json(options)},
                       {"sources", stamps_json(checkpoint.shard_stamps(), true)}});
}

// What a journal is good for: the same bytes would come out.
Json fingerprint_json(const Checkpoint& checkpoint, const ConvertOptions& options) {
  return Json::object({{"format_version", Json::integer(Container::format_version)},
                       {"program", Json::string(GLMD_VERSION)},
                       {"experts", Json::string(policy_name(options.policies.experts))},
                       {"dense", Json::string(policy_name(options.policies.dense))},
                       {"latent_norm_eps", Json::real(options.latent_norm_eps)},
                       {"ignored", ignored_json(options)},
                       {"sources", stamps_json(checkpoint.stamps(), true)}});
}

int64_t weight_count(const PlannedTensor& tensor) {
  int64_t count = 0;
  for (const MatrixSource& source : tensor.sources) count += source.rows * source.columns;
  return count;
}

class Conversion {
 public:
  Conversion(const ConvertOptions& options, const ConvertObserver& observer,
             const Checkpoint& checkpoint, const ConversionPlan& plan)
      : options_(options),
        observer_(observer),
        checkpoint_(checkpoint),
        plan_(plan),
        partial_(options.target + ".partial"),
        team_(options.threads) {}

  Result<void> run();

 private:
  Result<void> note(std::string text);
  bool has_sound(const PlannedFile& file) const;
  Result<void> find_kept();
  bool is_kept(const PlannedFile& file) const { return kept_.contains(file.name); }
  Result<void> drop_strangers() const;
  Result<void> read_ahead(const PlannedTensor& tensor, Background& reads) const;
  Result<void> write_file(const PlannedFile& file);
  Result<void> copy_small_files();
  Result<void> write_manifest();
  Result<void> publish();

  const ConvertOptions& options_;
  const ConvertObserver& observer_;
  const Checkpoint& checkpoint_;
  const ConversionPlan& plan_;
  const std::string partial_;
  Team team_;
  Journal journal_;
  std::set<std::string, std::less<>> kept_;  // files of an earlier run
  Manifest manifest_;
  ConvertProgress progress_;
};

Result<void> Conversion::run() {
  for (const PlannedFile& file : plan_.files)
    progress_.bytes_total += SafetensorsWriter::file_bytes(stored_tensors(file));
  const int64_t wanted_bytes = progress_.bytes_total + accompanying_bytes;
  if (!path_exists(partial_)) TRY(check_free_space(parent_folder(partial_), wanted_bytes));
  const File held = TRY(hold_folder(partial_));
  const bool is_ours = path_exists(partial_ + "/" + journal_name);
  if (!is_ours && !TRY(list_directory(partial_)).empty()) return foreign_folder(partial_);
  journal_ =
      TRY(Journal::open(partial_ + "/" + journal_name, fingerprint_json(checkpoint_, options_)));
  if (journal_.was_restarted())
    TRY(note(partial_ + ": made from other sources or with other options, starting anew"));
  TRY(find_kept());
  TRY(drop_strangers());
  TRY(check_free_space(partial_, wanted_bytes - progress_.bytes_kept));
  TRY(copy_small_files());
  for (const PlannedFile& file : plan_.files) {
    if (!is_kept(file)) TRY(write_file(file));
  }
  TRY(write_manifest());
  return publish();
}

Result<void> Conversion::note(std::string text) {
  progress_.note = std::move(text);
  const bool goes_on = observer_(progress_);
  progress_.note.clear();
  if (!goes_on) {
    return error(ErrorKind::cancelled,
                 "{}: broken off; start again with the same options to go on from here", partial_);
  }
  return {};
}

// Finished earlier, and still with the size and the checksums of then: a crash or a disk may have
// spoilt it since.
bool Conversion::has_sound(const PlannedFile& file) const {
  const Journal::Hashes* hashes = journal_.find(file.name);
  if (hashes == nullptr || hashes->size() != file.tensors.size()) return false;
  const std::vector<StoredTensor> wanted = stored_tensors(file);
  const Result<File> got = File::open_read_only(partial_ + "/" + file.name);
  if (!got.ok()) return false;
  const Result<int64_t> bytes = got.value().size_bytes();
  if (!bytes.ok() || bytes.value() != SafetensorsWriter::file_bytes(wanted)) return false;
  const Result<SafetensorsHeader> header = read_safetensors_header(got.value());
  if (!header.ok() || header.value().tensors.size() != wanted.size()) return false;
  std::vector<uint8_t> content;
  for (const StoredTensor& tensor : header.value().tensors) {
    const auto hash = hashes->find(tensor.name);
    if (hash == hashes->end()) return false;
    content.resize(static_cast<size_t>(tensor.bytes));
    if (!got.value().read_at(tensor.offset, content).ok()) return false;
    if (hash_bytes(content) != hash->second) return false;
  }
  return true;
}

Result<void> Conversion::find_kept() {
  bool is_said = false;
  for (const PlannedFile& file : plan_.files) {
    if (journal_.find(file.name) == nullptr) continue;
    if (!std::exchange(is_said, true))
      TRY(note(partial_ + ": checking the files of the run that was broken off"));
    progress_.file = file.name;
    if (has_sound(file)) {
      kept_.insert(file.name);
      progress_.bytes_kept += SafetensorsWriter::file_bytes(stored_tensors(file));
      progress_.bytes_done = progress_.bytes_kept;
      TRY(note(""));
    } else {
      TRY(note(
          fmt::format("{}/{}: not as it was written, converting it again", partial_, file.name)));
    }
  }
  return {};
}

// Files of an earlier attempt that this one does not write would make the container unsound. The
// folder is ours: its journal is.
Result<void> Conversion::drop_strangers() const {
  for (const std::string& name : TRY(list_directory(partial_))) {
    if (name == journal_name) continue;
    bool is_planned = false;
    for (const PlannedFile& file : plan_.files) is_planned |= file.name == name && is_kept(file);
    if (is_planned) continue;
    if (::unlink((partial_ + "/" + name).c_str()) != 0)
      return output_error(partial_ + "/" + name, "remove");
  }
  return {};
}

Result<void> Conversion::read_ahead(const PlannedTensor& tensor, Background& reads) const {
  return reads.add(0, [this, &tensor]() -> Result<void> {
    for (const MatrixSource& source : tensor.sources) {
      const int64_t row_bytes = source.columns * dtype_bits(source.tensor->stored.dtype) / 8;
      checkpoint_.read_ahead(*source.tensor, source.first_row * row_bytes, source.rows * row_bytes);
    }
    return {};
  });
}

// Reading ahead, encoding and writing behind go on side by side.
Result<void> Conversion::write_file(const PlannedFile& file) {
  const std::string path = partial_ + "/" + file.name;
  std::vector<StoredTensor> stored = stored_tensors(file);
  SafetensorsWriter writer = TRY(SafetensorsWriter::create(path, stored));
  Journal::Hashes hashes;
  Background reads(0), writes(write_behind_bytes);
  TensorEncoder encoder(checkpoint_, team_, *options_.kernels, writes);
  progress_.file = file.name;
  progress_.bytes_done += stored.front().offset;
  size_t asked_for = 0;
  for (size_t i = 0; i < stored.size(); ++i) {
    const PlannedTensor& tensor = file.tensors[i];
    for (; asked_for < std::min(i + 1 + tensors_ahead, stored.size()); ++asked_for)
      TRY(read_ahead(file.tensors[asked_for], reads));
    TRY_CONTEXT(encoder.encode(tensor, writer, stored[i].offset, hashes[stored[i].name]),
                file.name);
    progress_.bytes_done += stored[i].bytes;
    progress_.weights_done += weight_count(tensor);
    TRY(note(""));
  }
  TRY_CONTEXT(writes.finish(), file.name);
  TRY(writer.sync());
  return journal_.add(file.name, std::move(hashes));
}

Result<void> Conversion::copy_small_files() {
  for (const std::string& name : checkpoint_.small_files()) {
    const std::string content =
        TRY(read_file(checkpoint_.folder() + "/" + name, small_file_bytes_max));
    TRY(write_accompanying(partial_, name, content, manifest_));
  }
  return {};
}

Result<void> Conversion::write_manifest() {
  manifest_.family = plan_.config.family;
  manifest_.experts_policy = policy_name(options_.policies.experts);
  manifest_.dense_policy = policy_name(options_.policies.dense);
  manifest_.latent_norm_eps = options_.latent_norm_eps;
  manifest_.has_draft_layer = plan_.config.draft_layers > 0;
  manifest_.source = source_json(checkpoint_);
  for (const PlannedFile& file : plan_.files) {
    const Journal::Hashes* hashes = journal_.find(file.name);
    CHECK(hashes != nullptr);
    describe_file(file, *hashes, manifest_);
  }
  return write_file_atomically(partial_ + "/glmd.json", manifest_.to_json().to_string() + "\n");
}

// The record tells the next run what this container was made from. The journal goes last: a kill
// before that leaves a whole container with a harmless file in it.
Result<void> Conversion::publish() {
  const std::string record = record_json(checkpoint_, options_).to_string() + "\n";
  TRY(write_file_atomically(partial_ + "/" + record_name, record));
  TRY(publish_folder(partial_, options_.target));
  ::unlink((options_.target + "/" + journal_name).c_str());
  return {};
}

// What glmd could not serve is refused before hours are spent on it. Returns what to note.
Result<std::vector<std::string>> check_texts(const Checkpoint& checkpoint) {
  const std::string path = checkpoint.folder() + "/tokenizer.json";
  if (!path_exists(path)) return std::vector<std::string>();
  const Tokenizer tokenizer = TRY(Tokenizer::open(path, checkpoint.config().vocabulary));
  std::vector<std::string> notes =
      TRY(chat_doubts(checkpoint.folder(), checkpoint.config().stop_tokens, tokenizer));
  if (!tokenizer.ignored_settings().empty())
    notes.push_back(fmt::format("{}: {} ignored", path, tokenizer.ignored_settings()));
  return notes;
}

std::vector<std::string> notes_of(const Checkpoint& checkpoint, const ConversionPlan& plan,
                                  std::vector<std::string> of_texts) {
  const std::string& folder = checkpoint.folder();
  std::vector<std::string> notes = checkpoint.notes();
  std::move(of_texts.begin(), of_texts.end(), std::back_inserter(notes));
  if (!path_exists(folder + "/tokenizer.json"))
    notes.push_back(folder + ": no tokenizer.json: only fmt=tokens will be served, continuing");
  if (plan.is_draft_absent) {
    notes.push_back(
        fmt::format("{}: no tensors of the draft layer (layer {}), continuing without it", folder,
                    plan.config.layers));
  }
  if (plan.activation_scale_count > 0) {
    notes.push_back(fmt::format("{}: {} of activations left out: glmd does not quantise them so",
                                folder, counted(plan.activation_scale_count, "scale")));
  }
  if (checkpoint.ignored_count() > 0)
    notes.push_back(
        fmt::format("{}: {} ignored", folder, counted(checkpoint.ignored_count(), "tensor")));
  return notes;
}

// Whether the files beside the tensors are those of the source, where they were recorded.
Result<bool> has_same_texts(const Manifest& manifest, const Checkpoint& checkpoint) {
  if (manifest.accompanying.empty()) return true;
  for (const std::string& name : checkpoint.small_files()) {
    const Manifest::AccompanyingFile* recorded = manifest.find_accompanying(name);
    if (recorded == nullptr) return false;
    const std::string text = TRY(read_file(checkpoint.folder() + "/" + name, small_file_bytes_max));
    if (hash_bytes(text) != recorded->hash) return false;
  }
  return manifest.accompanying.size() == checkpoint.small_files().size();
}

// Whether TARGET is already what this conversion would make. Anything else there is not ours to
// touch.
Result<bool> is_converted(const ConvertOptions& options, const Checkpoint& checkpoint) {
  if (!path_exists(options.target)) return false;
  const Result<std::vector<std::string>> names = list_directory(options.target);
  if (names.ok() && names.value().empty()) return false;
  const Result<Container> container = Container::open(options.target);
  if (!container.ok()) {
    return error(ErrorKind::usage, "{}: exists and is not a whole container, not touched ({})",
                 options.target, container.error().message);
  }
  const auto refuse = [&](std::string_view why) {
    return error(ErrorKind::usage,
                 "{}: exists, converted {}; remove it first, or name another target",
                 options.target, why);
  };
  const Manifest manifest =
      TRY(Manifest::parse(container.value().manifest(), options.target + "/glmd.json"));
  if (manifest.experts_policy != policy_name(options.policies.experts) ||
      manifest.dense_policy != policy_name(options.policies.dense) ||
      manifest.latent_norm_eps != options.latent_norm_eps)
    return refuse("with other options");
  if (manifest.source.to_string() != source_json(checkpoint).to_string() ||
      !TRY(has_same_texts(manifest, checkpoint)))
    return refuse("from another source");
  const std::string record_path = options.target + "/" + record_name;
  if (!path_exists(record_path))
    return refuse(fmt::format("from files unknown ({} is not there)", record_name));
  const std::string text = TRY(read_file(record_path, record_bytes_max));
  const Json record = TRY(parse_json(text, record_path));
  const auto differs = [&, wanted = record_json(checkpoint, options)](std::string_view name) {
    const Json* value = record.find(name);
    return value == nullptr || value->to_string() != wanted.find(name)->to_string();
  };
  if (differs("ignored")) return refuse("with other options (--ignore)");
  if (differs("sources"))
    return refuse("from another source (its files are of another size or time)");
  return true;
}

}  // namespace

Result<void> convert(const ConvertOptions& given, const ConvertObserver& observer) {
  ConvertOptions options = given;
  options.target = TRY(target_folder(options.target));
  const Checkpoint checkpoint = TRY(Checkpoint::open(options.source, options.ignored));
  ConvertProgress progress;
  std::vector<std::string> of_texts = TRY(check_texts(checkpoint));
  const ConversionPlan plan = TRY(plan_conversion(checkpoint, options.policies));
  for (std::string& note : notes_of(checkpoint, plan, std::move(of_texts))) {
    progress.note = std::move(note);
    observer(progress);
  }
  if (TRY(is_converted(options, checkpoint))) {
    ::unlink((options.target + "/" + journal_name).c_str());
    progress.note = fmt::format("{}: converted already", options.target);
    observer(progress);
    return {};
  }
  return Conversion(options, observer, checkpoint, plan).run();
}

}  // namespace glmd
