#include "tools/convert/conversion.h"

#include <fnmatch.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "kernels/block_encoder.h"
#include "platform/parallel.h"
#include "storage/checksum.h"
#include "storage/container.h"
#include "storage/safetensors.h"
#include "tools/convert/source_checkpoint.h"

namespace glmd {
namespace {

std::string_view name_of(Policy policy) {
  constexpr std::string_view names[] = {"nl4", "nl5", "q8", "exact"};
  return names[static_cast<int>(policy)];
}

// The name table: our tensor -> the checkpoint's.
std::string source_name(const std::string& ours) {
  static const std::map<std::string, std::string, std::less<>> globals = {
      {"embedding", "model.embed_tokens.weight"},
      {"norm", "model.norm.weight"},
      {"head", "lm_head.weight"}};
  static const std::map<std::string, std::string, std::less<>> of_layer = {
      {"input_norm", "input_layernorm.weight"},
      {"post_attention_norm", "post_attention_layernorm.weight"},
      {"attention.q_a", "self_attn.q_a_proj.weight"},
      {"attention.q_a_norm", "self_attn.q_a_layernorm.weight"},
      {"attention.q_b", "self_attn.q_b_proj.weight"},
      {"attention.kv_a", "self_attn.kv_a_proj_with_mqa.weight"},
      {"attention.kv_a_norm", "self_attn.kv_a_layernorm.weight"},
      {"attention.k_b", "self_attn.kv_b_proj.weight"},
      {"attention.v_b", "self_attn.kv_b_proj.weight"},
      {"attention.o", "self_attn.o_proj.weight"},
      {"indexer.q_b", "self_attn.indexer.wq_b.weight"},
      {"indexer.k", "self_attn.indexer.wk.weight"},
      {"indexer.k_norm", "self_attn.indexer.k_norm.weight"},
      {"indexer.k_norm_bias", "self_attn.indexer.k_norm.bias"},
      {"indexer.weights", "self_attn.indexer.weights_proj.weight"},
      {"mlp.gate_up", "mlp."},
      {"mlp.down", "mlp.down_proj.weight"},
      {"router", "mlp.gate.weight"},
      {"router_bias", "mlp.gate.e_score_correction_bias"},
      {"shared.gate_up", "mlp.shared_experts."},
      {"shared.down", "mlp.shared_experts.down_proj.weight"},
      {"embedding_norm", "enorm.weight"},
      {"hidden_norm", "hnorm.weight"},
      {"eh_proj", "eh_proj.weight"},
      {"head_norm", "shared_head.norm.weight"},
      {"embedding", "embed_tokens.weight"},
      {"head", "shared_head.head.weight"}};
  if (const auto global = globals.find(ours); global != globals.end()) return global->second;
  const size_t dot = ours.find('.', 7);  // "layers.L."
  const std::string prefix = "model." + ours.substr(0, dot + 1);
  const std::string name = ours.substr(dot + 1);
  if (name.starts_with("experts.")) return prefix + "mlp." + name + ".";
  return prefix + of_layer.at(name);
}

bool is_draft(const TensorSpec& spec, const CheckpointConfig& config) {
  return spec.layer == config.layers;
}

// One of our tensors, how it will be stored and where its values come from.
struct Job {
  TensorSpec spec;
  BlockFormat format = BlockFormat::f32;
  std::vector<std::string> sources;  // one, or gate and up, or gate, up and down
  bool is_fused = false;             // an expert of mlp.experts.gate_up_proj / down_proj
  int64_t bytes = 0;
};

struct OutputFile {
  std::string name;
  std::vector<Job> jobs;
  int64_t bytes = 0;
};

BlockFormat stored_format(StoredType type) {
  if (type == StoredType::bf16) return BlockFormat::bf16;
  if (type == StoredType::f16) return BlockFormat::f16;
  return BlockFormat::f32;  // F32, and FP8 after its product
}

class Conversion {
 public:
  Conversion(const ConversionOptions& options, SourceCheckpoint source)
      : options_(options), source_(std::move(source)), team_(options.threads) {}

  Result<void> run();

 private:
  Result<void> plan();
  Result<Job> make_job(const TensorSpec& spec, std::set<std::string>& used) const;
  BlockFormat format_for(const TensorSpec& spec, std::span<const std::string> sources) const;
  Result<void> check_unused(const std::set<std::string>& used) const;
  Result<void> check_space() const;
  Result<void> begin_or_resume();
  Result<void> write_file(const OutputFile& output);
  Result<std::vector<uint8_t>> encode(const Job& job) const;
  Result<void> encode_matrix_job(const Job& job, std::span<uint8_t> out) const;
  Result<void> encode_head_part(const Job& job, std::span<uint8_t> out) const;
  Result<void> encode_expert(const Job& job, std::span<uint8_t> out) const;
  Result<void> finish();
  void say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }
  std::string partial() const { return options_.target + ".partial"; }
  std::string stamp() const;

  const ConversionOptions& options_;
  SourceCheckpoint source_;
  Team team_;
  bool with_draft_ = false;
  std::vector<OutputFile> outputs_;
  Json entries_ = Json::object();  // glmd.json: tensors
};

BlockFormat Conversion::format_for(const TensorSpec& spec,
                                   std::span<const std::string> sources) const {
  if (spec.layout == TensorLayout::vector) return BlockFormat::f32;
  BlockFormat exact = stored_format(source_.find(sources[0])->type);
  for (const std::string& name : sources) {
    if (stored_format(source_.find(name)->type) != exact) exact = BlockFormat::f32;
  }
  const bool is_router = spec.name.ends_with(".router");
  if (is_router) return exact;  // lossless, computed in f32
  const Policy policy = spec.layout == TensorLayout::expert ? options_.experts : options_.dense;
  if (policy == Policy::exact) return exact;
  const bool stays_at_8_bits = spec.name == "embedding" || spec.name == "head" ||
                               spec.name.find(".indexer.") != std::string::npos ||
                               is_draft(spec, source_.config());
  if (stays_at_8_bits || policy == Policy::q8) return BlockFormat::q8;
  return policy == Policy::nl4 ? BlockFormat::nl4 : BlockFormat::nl5;
}

Result<Job> Conversion::make_job(const TensorSpec& spec, std::set<std::string>& used) const {
  Job job;
  job.spec = spec;
  const std::string name = source_name(spec.name);
  if (spec.layout == TensorLayout::expert) {
    job.sources = {name + "gate_proj.weight", name + "up_proj.weight", name + "down_proj.weight"};
    if (source_.find(job.sources[0]) == nullptr) {
      const std::string fused = name.substr(0, name.find("experts.") + 8);
      if (source_.find(fused + "gate_up_proj") != nullptr) {
        job.is_fused = true;
        job.sources = {fused + "gate_up_proj", fused + "down_proj"};
      }
    }
  } else if (spec.layout == TensorLayout::gate_up) {
    job.sources = {name + "gate_proj.weight", name + "up_proj.weight"};
  } else {
    job.sources = {name};
  }
  for (const std::string& needed : job.sources) {
    const StoredTensor* tensor = source_.find(needed);
    if (tensor == nullptr) {
      return error(ErrorKind::bad_input, "{}: tensor {} is missing", options_.source, needed);
    }
    used.insert(needed);
    if (tensor->type == StoredType::f8_e4m3) used.insert(needed + "_scale_inv");
  }
  job.format = format_for(spec, job.sources);
  job.bytes = tensor_bytes(spec.layout, job.format, spec.rows, spec.columns);
  return job;
}

Result<void> Conversion::check_unused(const std::set<std::string>& used) const {
  std::vector<std::string> unknown;
  for (const std::string& name : source_.names()) {
    const bool is_ignored = std::any_of(
        options_.ignored.begin(), options_.ignored.end(),
        [&](const std::string& glob) { return ::fnmatch(glob.c_str(), name.c_str(), 0) == 0; });
    if (!used.contains(name) && !is_ignored) unknown.push_back(name);
  }
  if (unknown.empty()) return {};
  constexpr size_t shown = 5;
  std::string list;
  for (size_t i = 0; i < std::min(shown, unknown.size()); ++i)
    list += (i == 0 ? "" : ", ") + unknown[i];
  if (unknown.size() > shown) list += ", ...";
  return error(ErrorKind::bad_input,
               "{}: {} tensors are not of this model: {} (--ignore PATTERN leaves them out)",
               options_.source, unknown.size(), list);
}

Result<void> Conversion::plan() {
  const CheckpointConfig& config = source_.config();
  const std::string draft_prefix = fmt::format("model.layers.{}.", config.layers);
  const std::vector<std::string> names = source_.names();
  with_draft_ = config.draft_layers == 1 &&
                std::any_of(names.begin(), names.end(), [&](const std::string& name) {
                  return name.starts_with(draft_prefix);
                });
  if (config.draft_layers == 1 && !with_draft_) {
    say(fmt::format("layer {}, the draft layer, is absent: converting without it", config.layers));
  }

  std::set<std::string> used;
  std::map<std::string, std::vector<Job>> by_file;
  std::vector<std::string> order;
  for (const TensorSpec& spec : tensor_inventory(config, with_draft_)) {
    if (spec.is_optional && source_.find(source_name(spec.name)) == nullptr) continue;
    Job job = TRY(make_job(spec, used));
    const std::string kind = spec.layout == TensorLayout::expert ? "experts"
                             : is_draft(spec, config)            ? "mtp"
                                                                 : "dense";
    const std::string file = spec.layer < 0 ? "dense-global.safetensors"
                                            : fmt::format("{}-{:03}.safetensors", kind, spec.layer);
    if (!by_file.contains(file)) order.push_back(file);
    by_file[file].push_back(std::move(job));
  }
  TRY(check_unused(used));
  for (const std::string& file : order) {
    OutputFile output{.name = file, .jobs = std::move(by_file[file]), .bytes = 0};
    for (const Job& job : output.jobs) output.bytes += job.bytes;
    outputs_.push_back(std::move(output));
  }
  return {};
}

Result<void> Conversion::check_space() const {
  int64_t needed = 0;
  for (const OutputFile& output : outputs_) {
    if (!path_exists(partial() + "/" + output.name)) needed += output.bytes;
  }
  struct statvfs status;
  if (::statvfs(partial().c_str(), &status) != 0) {
    return error(ErrorKind::io, "{}: free space: {}", partial(), std::strerror(errno));
  }
  const auto free_bytes = static_cast<int64_t>(status.f_bavail * status.f_frsize);
  if (free_bytes < needed + (16 << 20)) {
    return error(ErrorKind::io, "{}: wanted {} bytes of free space, got {}", partial(),
                 needed + (16 << 20), free_bytes);
  }
  say(fmt::format("{} files, {:.2f} GB to write", outputs_.size(),
                  static_cast<double>(needed) / 1e9));
  return {};
}

// What a half-done target was made from and for.
std::string Conversion::stamp() const {
  std::string text =
      fmt::format("format {} experts {} dense {} draft {}\n", container_format_version,
                  name_of(options_.experts), name_of(options_.dense), with_draft_);
  for (const std::string& shard : source_.shard_stamps()) text += shard + "\n";
  return text;
}

Result<void> Conversion::begin_or_resume() {
  if (path_exists(options_.target)) {
    return error(ErrorKind::usage, "{}: already exists; remove it to convert again",
                 options_.target);
  }
  if (::mkdir(partial().c_str(), 0755) != 0 && errno != EEXIST) {
    return error(ErrorKind::io, "{}: create: {}", partial(), std::strerror(errno));
  }
  const std::string stamp_path = partial() + "/source.stamp";
  if (path_exists(stamp_path)) {
    const std::string old = TRY(read_file(stamp_path, 1 << 26));
    if (old != stamp()) {
      return error(ErrorKind::bad_input,
                   "{}: begun from another source or with other options; remove it to start over",
                   partial());
    }
    say(fmt::format("going on with {}", partial()));
    return {};
  }
  return write_file_atomically(stamp_path, stamp());
}

// Matrices and embeddings, slab by slab, so that a large one is never held as float32.
Result<void> Conversion::encode_matrix_job(const Job& job, std::span<uint8_t> out) const {
  const TensorSpec& spec = job.spec;
  const bool is_vector = spec.layout == TensorLayout::vector;
  const std::vector<int64_t> shape = is_vector ? std::vector<int64_t>{spec.columns}
                                               : std::vector<int64_t>{spec.rows, spec.columns};
  if (is_quantised(job.format) && spec.layout == TensorLayout::matrix) {
    std::vector<float> values(static_cast<size_t>(spec.rows * spec.columns));
    TRY(source_.read_rows(job.sources[0], shape, 0, spec.rows, values.data()));
    encode_matrix(job.format, values.data(), spec.rows, spec.columns, out.data());
    return {};
  }
  // Row-major forms go slab by slab.
  const int64_t slab_rows = std::max<int64_t>(1, (int64_t{16} << 20) / spec.columns);
  std::vector<float> values(static_cast<size_t>(std::min(slab_rows, spec.rows) * spec.columns));
  const int64_t row_bytes = job.bytes / spec.rows;
  for (int64_t begin = 0; begin < spec.rows; begin += slab_rows) {
    const int64_t end = std::min(spec.rows, begin + slab_rows);
    TRY(source_.read_rows(job.sources[0], shape, begin, end, values.data()));
    encode_embedding(job.format, values.data(), end - begin, spec.columns,
                     out.data() + begin * row_bytes);
  }
  return {};
}

// kv_b holds, per head, qk_nope rows of K and v rows of V over the latent. V stays as it is; K is
// turned, so that queries can be moved into the latent space by rows.
Result<void> Conversion::encode_head_part(const Job& job, std::span<uint8_t> out) const {
  const CheckpointConfig& config = source_.config();
  const int64_t nope = config.qk_nope_head_dim, v = config.v_head_dim;
  const int64_t latent = config.kv_lora_rank, per_head = nope + v;
  const int64_t rows = config.heads * per_head;
  std::vector<float> stored(static_cast<size_t>(rows * latent));
  TRY(source_.read_rows(job.sources[0], {rows, latent}, 0, rows, stored.data()));
  std::vector<float> values(static_cast<size_t>(job.spec.rows * job.spec.columns));
  const bool is_keys = job.spec.name.ends_with("k_b");
  for (int64_t head = 0; head < config.heads; ++head) {
    const float* from = stored.data() + (head * per_head + (is_keys ? 0 : nope)) * latent;
    float* to = values.data() + head * (is_keys ? nope : v) * latent;
    if (!is_keys) {
      std::copy_n(from, v * latent, to);
      continue;
    }
    for (int64_t i = 0; i < nope; ++i) {
      for (int64_t c = 0; c < latent; ++c) to[c * nope + i] = from[i * latent + c];
    }
  }
  encode_matrix(job.format, values.data(), job.spec.rows, job.spec.columns, out.data());
  return {};
}

Result<void> Conversion::encode_expert(const Job& job, std::span<uint8_t> out) const {
  const int64_t width = job.spec.rows, hidden = job.spec.columns, count = width * hidden;
  std::vector<float> gate_up(static_cast<size_t>(2 * count)), down(static_cast<size_t>(count));
  if (job.is_fused) {
    const int64_t experts = source_.config().routed_experts;
    const int64_t expert = std::stoll(job.spec.name.substr(job.spec.name.rfind('.') + 1));
    TRY(source_.read_rows(job.sources[0], {experts, 2 * width, hidden}, expert * 2 * width,
                          (expert + 1) * 2 * width, gate_up.data()));
    TRY(source_.read_rows(job.sources[1], {experts, hidden, width}, expert * hidden,
                          (expert + 1) * hidden, down.data()));
  } else {
    TRY(source_.read_rows(job.sources[0], {width, hidden}, 0, width, gate_up.data()));
    TRY(source_.read_rows(job.sources[1], {width, hidden}, 0, width, gate_up.data() + count));
    TRY(source_.read_rows(job.sources[2], {hidden, width}, 0, hidden, down.data()));
  }
  encode_gate_up(job.format, gate_up.data(), gate_up.data() + count, width, hidden, out.data());
  encode_matrix(job.format, down.data(), hidden, width,
                out.data() + expert_down_offset(job.format, width, hidden));
  return {};
}

Result<std::vector<uint8_t>> Conversion::encode(const Job& job) const {
  std::vector<uint8_t> bytes(static_cast<size_t>(job.bytes));
  if (job.spec.layout == TensorLayout::expert) {
    TRY(encode_expert(job, bytes));
  } else if (job.spec.layout == TensorLayout::gate_up) {
    const int64_t count = job.spec.rows * job.spec.columns;
    std::vector<float> values(static_cast<size_t>(2 * count));
    for (int64_t part : {0, 1}) {
      TRY(source_.read_rows(job.sources[part], {job.spec.rows, job.spec.columns}, 0, job.spec.rows,
                            values.data() + part * count));
    }
    encode_gate_up(job.format, values.data(), values.data() + count, job.spec.rows,
                   job.spec.columns, bytes.data());
  } else if (job.spec.name.ends_with(".k_b") || job.spec.name.ends_with(".v_b")) {
    TRY(encode_head_part(job, bytes));
  } else {
    TRY(encode_matrix_job(job, bytes));
  }
  return bytes;
}

Result<void> Conversion::write_file(const OutputFile& output) {
  const std::string path = partial() + "/" + output.name;
  const std::string entries_path = path + ".json";
  if (path_exists(path) && path_exists(entries_path)) {  // done before an interruption
    const Json entries = TRY(read_json_file(entries_path, 1 << 28));
    for (const auto& [name, entry] : entries.members())
      entries_.members().emplace_back(name, entry);
    return {};
  }
  std::vector<StoredTensor> tensors;
  for (const Job& job : output.jobs) {
    tensors.push_back(
        {.name = job.spec.name, .type = StoredType::u8, .shape = {job.bytes}, .bytes = job.bytes});
  }
  const std::string header = make_safetensors_header(tensors);
  File file = TRY(File::create(path + ".new"));
  TRY(file.write_at(0, {reinterpret_cast<const uint8_t*>(header.data()), header.size()}));

  // Tensors are encoded by as many threads as there are and written where they belong.
  std::vector<uint64_t> hashes(output.jobs.size());
  std::mutex mutex;
  std::optional<Error> failure;
  const auto count = static_cast<int64_t>(output.jobs.size());
  for (int64_t begin = 0; begin < count && !failure; begin += team_.thread_count()) {
    const int64_t end = std::min<int64_t>(count, begin + team_.thread_count());
    team_.run(end - begin, 1, [&](int64_t first, int64_t last, int) {
      for (int64_t i = begin + first; i < begin + last; ++i) {
        Result<std::vector<uint8_t>> bytes = encode(output.jobs[i]);
        Result<void> written;
        if (bytes.ok()) {
          hashes[i] = checksum(bytes.value());
          written = file.write_at(tensors[i].offset, bytes.value());
        }
        const std::lock_guard lock(mutex);
        if (!bytes.ok() && !failure) failure = bytes.error();
        if (!written.ok() && !failure) failure = written.error();
      }
    });
  }
  if (failure) return *failure;
  TRY(file.sync());

  Json entries = Json::object();
  for (size_t i = 0; i < output.jobs.size(); ++i) {
    const Job& job = output.jobs[i];
    Json entry = Json::object();
    entry.set("file", Json::string(output.name));
    entry.set("layout", Json::string(std::string(glmd::name_of(job.spec.layout))));
    entry.set("format", Json::string(std::string(glmd::name_of(job.format))));
    entry.set("rows", Json::integer(job.spec.rows));
    entry.set("columns", Json::integer(job.spec.columns));
    entry.set("hash", Json::string(fmt::format("{:016x}", hashes[i])));
    entries.members().emplace_back(job.spec.name, std::move(entry));
  }
  if (::rename((path + ".new").c_str(), path.c_str()) != 0) {
    return error(ErrorKind::io, "{}: rename: {}", path, std::strerror(errno));
  }
  TRY(write_file_atomically(entries_path, entries.to_string()));
  for (auto& member : entries.members()) entries_.members().push_back(std::move(member));
  return {};
}

Json table_json(std::span<const int8_t> table) {
  Json json = Json::array();
  for (const int8_t entry : table) json.items().push_back(Json::integer(entry));
  return json;
}

Result<void> Conversion::finish() {
  for (const std::string_view name : {"config.json", "generation_config.json", "tokenizer.json",
                                      "tokenizer_config.json", "chat_template.jinja"}) {
    const std::string from = options_.source + "/" + std::string(name);
    if (!path_exists(from)) continue;
    const std::string content = TRY(read_file(from, 1 << 28));
    TRY(write_file_atomically(partial() + "/" + std::string(name), content));
  }
  Json policy = Json::object();
  policy.set("experts", Json::string(std::string(name_of(options_.experts))));
  policy.set("dense", Json::string(std::string(name_of(options_.dense))));
  std::string stamps;
  for (const std::string& shard : source_.shard_stamps()) {
    stamps += shard.substr(0, shard.rfind(' ')) + "\n";  // names and sizes
  }
  Json origin = Json::object();
  origin.set("shards", Json::integer(static_cast<int64_t>(source_.shard_stamps().size())));
  origin.set(
      "shards_hash",
      Json::string(fmt::format(
          "{:016x}", checksum({reinterpret_cast<const uint8_t*>(stamps.data()), stamps.size()}))));
  Json files = Json::array();
  for (const OutputFile& output : outputs_) files.items().push_back(Json::string(output.name));
  Json manifest = Json::object();
  manifest.set("format_version", Json::integer(container_format_version));
  manifest.set("family", Json::string("glm_moe_dsa"));
  manifest.set("policy", std::move(policy));
  manifest.set("reference",
               Json::boolean(options_.experts == Policy::exact && options_.dense == Policy::exact));
  manifest.set("latent_norm_eps", Json::real(options_.latent_norm_eps));
  manifest.set("source", std::move(origin));
  manifest.set("nl4_table", table_json(nl4_table));
  manifest.set("nl5_table", table_json(nl5_table));
  manifest.set("files", std::move(files));
  manifest.set("tensors", std::move(entries_));
  TRY(write_file_atomically(partial() + "/glmd.json", manifest.to_string()));

  for (const OutputFile& output : outputs_) {
    ::unlink((partial() + "/" + output.name + ".json").c_str());
  }
  ::unlink((partial() + "/source.stamp").c_str());
  if (::rename(partial().c_str(), options_.target.c_str()) != 0) {
    return error(ErrorKind::io, "{}: rename to {}: {}", partial(), options_.target,
                 std::strerror(errno));
  }
  return {};
}

Result<void> Conversion::run() {
  TRY(plan());
  TRY(begin_or_resume());
  TRY(check_space());
  for (size_t i = 0; i < outputs_.size(); ++i) {
    TRY(write_file(outputs_[i]));
    say(fmt::format("[{}/{}] {}", i + 1, outputs_.size(), outputs_[i].name));
  }
  return finish();
}

}  // namespace

Result<void> convert(const ConversionOptions& options) {
  SourceCheckpoint source = TRY(SourceCheckpoint::open(options.source));
  Conversion conversion(options, std::move(source));
  return conversion.run();
}

}  // namespace glmd
