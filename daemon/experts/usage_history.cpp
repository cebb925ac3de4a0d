#include "experts/usage_history.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include "platform/file.h"
#include "storage/manifest.h"

namespace glmd {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t version = 1;
constexpr float count_max = 1e9F;
constexpr double weight_max = 1e100;

struct Header {
  char magic[8] = {'G', 'L', 'M', 'D', 'U', 'S', 'E', 'S'};
  uint32_t version = glmd::version;
  uint32_t layers = 0, experts = 0, reserved = 0;
  uint64_t identity = 0;
};
static_assert(sizeof(Header) == 32);

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

UsageHistory::UsageHistory(const RoutingShape& shape)
    : identity_(shape.identity), experts_(shape.experts), chosen_(shape.chosen) {
  for (const int64_t bytes : shape.expert_bytes) {
    index_.push_back(bytes > 0 ? static_cast<int32_t>(layers_.size()) : -1);
    if (bytes == 0) continue;
    layers_.emplace_back().values.resize(static_cast<size_t>(experts_));
  }
}

Result<void> UsageHistory::load(const std::string& path) {
  const size_t count = layers_.size() * static_cast<size_t>(experts_);
  const size_t bytes = sizeof(Header) + count * sizeof(float) + sizeof(uint64_t);
  const std::string content = TRY(read_file(path, int64_t{1} << 30));
  const Header wanted{.layers = static_cast<uint32_t>(layers_.size()),
                      .experts = static_cast<uint32_t>(experts_),
                      .identity = identity_};
  const std::string_view magic(wanted.magic, sizeof wanted.magic);
  if (!magic.starts_with(std::string_view(content).substr(0, magic.size()))) {
    return error(ErrorKind::config, "{}: exists and is no usage history", path);
  }
  Header header;
  if (content.size() < sizeof header) {
    return error(ErrorKind::corrupt, "{}: the header is cut off", path);
  }
  std::memcpy(&header, content.data(), sizeof header);
  if (header.version != version) {
    const ErrorKind kind = header.version > version ? ErrorKind::config : ErrorKind::corrupt;
    return error(kind, "{}: version: wanted {}, got {}", path, version, header.version);
  }
  if (header.identity != identity_) {
    return error(ErrorKind::bad_input, "{}: of another model: wanted identity {:016x}, got {:016x}",
                 path, identity_, header.identity);
  }
  if (header.layers != wanted.layers || header.experts != wanted.experts) {
    return error(ErrorKind::corrupt, "{}: layers x experts: wanted {} x {}, got {} x {}", path,
                 wanted.layers, wanted.experts, header.layers, header.experts);
  }
  if (content.size() != bytes) {
    return error(ErrorKind::corrupt, "{}: size: wanted {} bytes, got {}", path, bytes,
                 content.size());
  }
  uint64_t hash = 0;
  std::memcpy(&hash, content.data() + bytes - sizeof hash, sizeof hash);
  if (hash != hash_bytes(bytes_of(content).first(bytes - sizeof hash))) {
    return error(ErrorKind::corrupt, "{}: the checksum does not match", path);
  }
  std::vector<float> counts(count);
  std::memcpy(counts.data(), content.data() + sizeof header, count * sizeof(float));
  for (const float value : counts) {
    if (!(value >= 0 && value <= count_max)) {
      return error(ErrorKind::corrupt, "{}: a count: wanted 0 to {}, got {}", path, count_max,
                   value);
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  auto next = counts.begin();
  for (Layer& layer : layers_) {
    layer.weight = 1;
    for (double& value : layer.values) value = *next++;
  }
  saved_changes_ = changes_;
  return {};
}

Result<bool> UsageHistory::save(const std::string& path) {
  int64_t changes = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    changes = changes_;
    if (changes == saved_changes_) return false;
  }
  const std::vector<float> values = counts();
  const Header header{.layers = static_cast<uint32_t>(layers_.size()),
                      .experts = static_cast<uint32_t>(experts_),
                      .identity = identity_};
  std::string content(reinterpret_cast<const char*>(&header), sizeof header);
  content.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  const uint64_t hash = hash_bytes(bytes_of(content));
  content.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  TRY(write_file_atomically(path, content, 0600));
  const std::lock_guard<std::mutex> lock(mutex_);
  saved_changes_ = changes;
  return true;
}

void UsageHistory::routed(const RoutedRows& rows) {
  CHECK(rows.layer >= 0);
  CHECK(rows.layer < std::ssize(index_));
  CHECK(index_[rows.layer] >= 0);
  const std::lock_guard<std::mutex> lock(mutex_);
  Layer& layer = layers_[index_[rows.layer]];
  layer.weight *= std::exp2(static_cast<double>(rows.positions.size()) / history_half_life_tokens);
  if (layer.weight > weight_max) {
    for (double& value : layer.values) value /= layer.weight;
    layer.weight = 1;
  }
  for (const uint16_t expert : rows.experts) layer.values[expert] += layer.weight;
  ++changes_;
}

std::vector<float> UsageHistory::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<float> counts;
  for (const Layer& layer : layers_) {
    for (const double value : layer.values) {
      counts.push_back(static_cast<float>(value / layer.weight));
    }
  }
  return counts;
}

std::vector<float> usage_prior(std::span<const float> counts, int64_t experts, int64_t chosen,
                               double tokens) {
  std::vector<float> prior(counts.size());
  for (size_t begin = 0; begin < counts.size(); begin += static_cast<size_t>(experts)) {
    const std::span<const float> layer = counts.subspan(begin, static_cast<size_t>(experts));
    const double sum = std::accumulate(layer.begin(), layer.end(), 0.0);
    if (sum <= 0) continue;
    const double scale = tokens * static_cast<double>(chosen) / sum;
    for (size_t i = 0; i < layer.size(); ++i) {
      prior[begin + i] = static_cast<float>(layer[i] * scale);
    }
  }
  return prior;
}

std::vector<int32_t> warm_start_order(std::span<const float> counts,
                                      std::span<const ExpertExtent> extents, int64_t arena_bytes) {
  constexpr size_t group_size = 64;
  std::vector<int32_t> order;
  for (size_t expert = 0; expert < std::min(counts.size(), extents.size()); ++expert) {
    if (counts[expert] > 0) order.push_back(static_cast<int32_t>(expert));
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
  });
  int64_t left_bytes = arena_bytes;
  const auto end = std::find_if(order.begin(), order.end(), [&](int32_t expert) {
    left_bytes -= extents[expert].bytes;
    return left_bytes < 0;
  });
  order.erase(end, order.end());
  for (size_t begin = 0; begin < order.size(); begin += group_size) {
    const size_t count = std::min(group_size, order.size() - begin);
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(begin);
    std::sort(first, first + static_cast<std::ptrdiff_t>(count), [&](int32_t a, int32_t b) {
      return std::tie(extents[a].file, extents[a].offset) <
             std::tie(extents[b].file, extents[b].offset);
    });
  }
  return order;
}

}  // namespace glmd
