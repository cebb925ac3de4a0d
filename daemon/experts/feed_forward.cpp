#include "experts/feed_forward.h"

#include <algorithm>
#include <cstring>

#include "platform/grown.h"

namespace glmd {
namespace {

constexpr int64_t gather_grain = 16;
constexpr int64_t result_floats_max = 16384;  // of one thread at a time: they stay in its cache

// Where each member's rows begin in the group, and the row of the input behind each.
int64_t place_rows(std::span<const FeedForward> group, ExpertScratch& scratch) {
  scratch.first_rows.clear();
  scratch.sources.clear();
  for (const FeedForward& member : group) {
    scratch.first_rows.push_back(static_cast<int64_t>(scratch.sources.size()));
    scratch.sources.insert(scratch.sources.end(), member.rows.begin(), member.rows.end());
  }
  return static_cast<int64_t>(scratch.sources.size());
}

// The rows of the group, packed: the kernels take consecutive rows.
Activations gather(const Compute& compute, const Activations& input, bool quantised,
                   ExpertScratch& scratch) {
  const std::vector<int32_t>& sources = scratch.sources;
  const auto count = static_cast<int64_t>(sources.size());
  Activations packed = input;
  packed.row_count = count;
  if (!quantised) {
    float* values = grown(scratch.gathered.values, count * input.columns);
    compute.team.run(count, gather_grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(values + i * input.columns, input.values + sources[i] * input.value_stride,
                    static_cast<size_t>(input.columns) * sizeof(float));
      }
    });
    packed.values = values;
    packed.value_stride = input.columns;
    return packed;
  }
  const int64_t padded = padded_columns(input.columns), groups = padded / group_columns;
  int8_t* codes = grown(scratch.gathered.codes, count * padded);
  float* scales = grown(scratch.gathered.scales, count * groups);
  int32_t* sums = grown(scratch.gathered.sums, count * groups);
  compute.team.run(count, gather_grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t source = sources[i];
      std::memcpy(codes + i * padded, input.codes + source * padded, static_cast<size_t>(padded));
      std::memcpy(scales + i * groups, input.scales + source * groups,
                  static_cast<size_t>(groups) * sizeof(float));
      std::memcpy(sums + i * groups, input.sums + source * groups,
                  static_cast<size_t>(groups) * sizeof(int32_t));
    }
  });
  packed.values = nullptr;
  packed.codes = codes;
  packed.scales = scales;
  packed.sums = sums;
  return packed;
}

// Calls task(member, begin, end, thread) so that rows [0, row_count) of every member's matrix are
// covered once.
template <typename Task>
void run_tiles(Team& team, int64_t members, int64_t row_count, const Task& task) {
  const int64_t tiles = padded_rows(row_count) / tile_rows;
  team.run(members * tiles, 1, [&](int64_t begin, int64_t end, int thread) {
    while (begin < end) {
      const int64_t member = begin / tiles, first = begin % tiles;
      const int64_t last = std::min(tiles, first + (end - begin));
      task(member, first * tile_rows, std::min(last * tile_rows, row_count), thread);
      begin += last - first;
    }
  });
}

}  // namespace

void run_feed_forward(const Compute& compute, std::span<const FeedForward> group,
                      const Activations& input, ExpertScratch& scratch, float* output,
                      int64_t output_stride) {
  const auto members = static_cast<int64_t>(group.size());
  const Matrix &gate_up = group[0].gate_up, &down = group[0].down;
  const int64_t width = gate_up.rows;
  const bool takes_all_rows = group[0].rows.empty();
  const bool is_one_row_each =
      !takes_all_rows && std::all_of(group.begin(), group.end(), [](const FeedForward& member) {
        return member.rows.size() == 1;
      });
  const int64_t rows = takes_all_rows ? input.row_count : place_rows(group, scratch);
  if (takes_all_rows) scratch.first_rows.assign(1, 0);
  const Activations packed = takes_all_rows || is_one_row_each
                                 ? input
                                 : gather(compute, input, is_quantised(gate_up.format), scratch);
  const auto rows_of = [&](int64_t member) {
    return takes_all_rows ? rows : static_cast<int64_t>(group[member].rows.size());
  };

  float* hidden = grown(scratch.hidden, rows * width);
  const auto gate_up_kernel = compute.kernels.gate_up[static_cast<int>(gate_up.format)];
  run_tiles(compute.team, members, width, [&](int64_t member, int64_t begin, int64_t end, int) {
    const int64_t first = scratch.first_rows[member];
    const Activations own =
        part_of(packed, is_one_row_each ? scratch.sources[first] : first, rows_of(member));
    gate_up_kernel(group[member].gate_up, own, hidden + first * width, width, begin, end);
  });

  scratch.middle.set(hidden, width, rows, width);
  const Activations& middle = scratch.middle.for_format(compute, down.format);
  const auto down_kernel = compute.kernels.matmul[static_cast<int>(down.format)];
  const auto threads = static_cast<size_t>(compute.team.thread_count());
  scratch.results.resize(std::max(scratch.results.size(), threads));
  run_tiles(compute.team, members, down.rows,
            [&](int64_t member, int64_t begin, int64_t end, int thread) {
              const int64_t count = rows_of(member);
              const Matrix& w = group[member].down;
              const Activations own = part_of(middle, scratch.first_rows[member], count);
              if (takes_all_rows || count == 1) {
                const int64_t first = takes_all_rows ? 0 : group[member].outputs[0];
                down_kernel(w, own, output + first * output_stride, output_stride, begin, end);
                return;
              }
              // Results go to rows that are not consecutive: by way of a few columns at a time.
              const int64_t step =
                  std::max(tile_rows, result_floats_max / count / tile_rows * tile_rows);
              float* results = grown(scratch.results[static_cast<size_t>(thread)], count * step);
              for (int64_t from = begin; from < end; from += step) {
                const int64_t columns = std::min(step, end - from);
                down_kernel(w, own, results - from, step, from, from + columns);
                for (int64_t i = 0; i < count; ++i) {
                  std::memcpy(output + group[member].outputs[i] * output_stride + from,
                              results + i * step, static_cast<size_t>(columns) * sizeof(float));
                }
              }
            });
}

}  // namespace glmd
