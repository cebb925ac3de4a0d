#include "tools/make-model/model_maker.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "platform/file.h"
#include "tools/convert/container_folder.h"
#include "tools/convert/tensor_sink.h"
#include "tools/make-model/random_weights.h"

namespace glmd {
namespace {

std::vector<PlannedFile> plan_files(const CheckpointConfig& config, const Policies& policies) {
  std::vector<PlannedFile> files;
  for (InventoryEntry& entry : list_tensors(config)) {
    if (entry.is_optional) continue;
    PlannedTensor tensor{.entry = std::move(entry), .sources = {}};
    const BlockFormat plain =
        tensor.entry.layout == TensorLayout::vector ? BlockFormat::f32 : BlockFormat::bf16;
    tensor.format = quantised_format(tensor.entry, policies).value_or(plain);
    tensor.bytes =
        stored_bytes(tensor.entry.layout, tensor.format, tensor.entry.rows, tensor.entry.columns);
    add_tensor(std::move(tensor), files);
  }
  return files;
}

class Making {
 public:
  Making(const MakeOptions& options, const ConvertObserver& observer,
         const CheckpointConfig& config, const std::string& partial)
      : options_(options),
        observer_(observer),
        config_(config),
        partial_(partial),
        team_(options.threads),
        weights_(options.seed, team_) {}

  Result<void> run();

 private:
  Result<void> write_file(const PlannedFile& file);
  Result<uint64_t> write_tensor(const PlannedTensor& tensor, SafetensorsWriter& writer,
                                int64_t offset);

  const MakeOptions& options_;
  const ConvertObserver& observer_;
  const CheckpointConfig& config_;
  const std::string& partial_;
  Team team_;
  RandomWeights weights_;
  std::vector<uint8_t> band_;
  Manifest manifest_;
  ConvertProgress progress_;
};

Result<void> Making::run() {
  const std::vector<PlannedFile> files = plan_files(config_, options_.policies);
  for (const PlannedFile& file : files)
    progress_.bytes_total += SafetensorsWriter::file_bytes(stored_tensors(file));
  TRY(check_free_space(partial_, progress_.bytes_total + accompanying_bytes));
  manifest_.family = config_.family;
  manifest_.experts_policy = policy_name(options_.policies.experts);
  manifest_.dense_policy = policy_name(options_.policies.dense);
  manifest_.has_draft_layer = config_.draft_layers > 0;
  manifest_.source = Json::object({{"name", Json::string("random weights")},
                                   {"seed", Json::string(fmt::format("{}", options_.seed))}});
  for (const PlannedFile& file : files) TRY(write_file(file));
  TRY(write_accompanying(partial_, "config.json", options_.config.to_string() + "\n", manifest_));
  TRY(write_file_atomically(partial_ + "/glmd.json", manifest_.to_json().to_string() + "\n"));
  return publish_folder(partial_, options_.target);
}

Result<void> Making::write_file(const PlannedFile& file) {
  std::vector<StoredTensor> stored = stored_tensors(file);
  SafetensorsWriter writer = TRY(SafetensorsWriter::create(partial_ + "/" + file.name, stored));
  std::map<std::string, uint64_t, std::less<>> hashes;
  progress_.file = file.name;
  progress_.bytes_done += stored.front().offset;
  for (size_t i = 0; i < stored.size(); ++i) {
    hashes[stored[i].name] = TRY(write_tensor(file.tensors[i], writer, stored[i].offset));
    progress_.bytes_done += stored[i].bytes;
    if (!observer_(progress_)) return error(ErrorKind::cancelled, "{}: broken off", partial_);
  }
  TRY(writer.sync());
  describe_file(file, hashes, manifest_);
  return {};
}

Result<uint64_t> Making::write_tensor(const PlannedTensor& tensor, SafetensorsWriter& writer,
                                      int64_t offset) {
  TensorSink sink(writer, offset);
  for (const RandomWeights::Segment& segment : weights_.segments(tensor)) {
    const int64_t band_bytes = RandomWeights::band_bytes(segment);
    for (int64_t begin = 0; begin < segment.bytes; begin += band_bytes) {
      band_.resize(static_cast<size_t>(std::min(band_bytes, segment.bytes - begin)));
      weights_.fill(segment, begin, band_);
      TRY(sink.append(band_));
    }
  }
  return sink.hash();
}

Result<void> check_target(const std::string& target) {
  if (!path_exists(target)) return {};
  const Result<std::vector<std::string>> names = list_directory(target);
  if (names.ok() && names.value().empty()) return {};
  return error(ErrorKind::usage, "{}: exists, not touched; remove it first", target);
}

}  // namespace

Result<void> make_model(const MakeOptions& given, const ConvertObserver& observer) {
  MakeOptions options = given;
  options.target = TRY(target_folder(options.target));
  const CheckpointConfig config = TRY(CheckpointConfig::parse(options.config, "config"));
  TRY(check_target(options.target));
  const std::string partial = options.target + ".partial";
  if (::mkdir(partial.c_str(), 0777) != 0) {
    if (errno != EEXIST) return output_error(partial, "make folder");
    TRY(check_not_held(partial));
    return foreign_folder(partial);
  }
  const File held = TRY(hold_folder(partial));
  const Result<void> made = Making(options, observer, config, partial).run();
  if (!made.ok()) {
    std::error_code ignored;
    std::filesystem::remove_all(partial, ignored);
  }
  return made;
}

}  // namespace glmd
